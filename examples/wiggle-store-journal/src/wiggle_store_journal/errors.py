"""The system's errors as wiggle's three classes, with a sentence that names the file and what to do."""

from __future__ import annotations

import errno

from wiggle_core.errors import PermanentStoreError, StoreError, TransientStoreError

_TRANSIENT = {
    errno.ENOMEM: "there is not enough memory to work on {}",
    errno.EMFILE: "this process has too many open files to open {}",
    errno.ENFILE: "this machine has too many open files to open {}",
    errno.ENOLCK: "the system has no lock left for {}",
    errno.EINTR: "the work on {} was interrupted",
}
_PERMANENT = {
    errno.ENOSPC: "{} cannot grow: the disk is full; free space, then go on",
    errno.EDQUOT: "{} cannot grow: this user's quota is used up",
    errno.EFBIG: "{} cannot grow: the largest file size is reached",
    errno.EROFS: "{} lies on a read-only disk",
    errno.EACCES: "{} may not be accessed: give this user permission on the file and its directory",
    errno.EPERM: "{} may not be accessed: give this user permission on the file and its directory",
    errno.ENOENT: "{} cannot be made: its directory does not exist",
    errno.ENOTDIR: "{} cannot be made: its directory is a file",
    errno.EISDIR: "{} is a directory: name a file in the store URL",
    errno.EIO: "the disk under {} reports an error: look into the system's log",
}


def translate(error: OSError, place: str) -> StoreError:
    """The error to raise, with the system's as its cause, where nothing was written. `place` names the file."""
    number = error.errno or 0
    if number in _TRANSIENT:
        return TransientStoreError(_TRANSIENT[number].format(place))
    message = _PERMANENT.get(number, "the system refused the work on {}").format(place)
    return PermanentStoreError(f"{message} ({errno.errorcode.get(number, number)})")
