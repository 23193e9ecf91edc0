"""The servers that tests of whole commands share."""

from __future__ import annotations

from tests.stores.conftest import cassandra_url, mariadb_url, mysql_like_url, mysql_url, postgres_url

__all__ = ["cassandra_url", "mariadb_url", "mysql_like_url", "mysql_url", "postgres_url"]
