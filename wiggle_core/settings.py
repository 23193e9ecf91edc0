"""Settings of engine and worker, read from environment variables named `WIGGLE_` and the field in upper case."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wiggle_core.errors import InvalidSetting
from wiggle_core.lanes.planner import LanePolicy
from wiggle_core.tasks.payload import MAX_PAYLOAD_BYTES

PREFIX = "WIGGLE_"


class Settings(BaseModel):
    """What an operator may tune without touching code."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scoped_fallback_max_millis: Annotated[int, Field(ge=100)] = 2_000
    """The longest wait between two claims of a worker that finds nothing."""
    sweep_interval_millis: Annotated[int, Field(ge=10, le=3_600_000)] = 500
    """How often each worker promotes due tasks and takes expired leases back; once an hour at least."""
    history_retention_seconds: Annotated[int, Field(ge=0)] = 24 * 60 * 60
    """How long settled tasks are kept; ten minutes at least, whatever is set (L4)."""
    lanes: LanePolicy = LanePolicy.AUTO
    """Which criteria have lanes of their own (N4): auto, on or off."""
    payload_max_bytes: Annotated[int, Field(ge=1)] = MAX_PAYLOAD_BYTES
    """The largest payload or result, in bytes of UTF-8 JSON."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings of this process. Raises InvalidSetting naming the variable that cannot be used."""
        named = {field: PREFIX + field.upper() for field in cls.model_fields}
        given = {field: environment[variable] for field, variable in named.items() if environment.get(variable)}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidSetting(named[str(first["loc"][0])], first["msg"]) from None
