#!/bin/sh
# What the official image of PostgreSQL does with its variables: a user and a database, made at the first start. For tests.
# Called with "prepare" while the image is made.
set -eu
if [ "${1-}" = prepare ]; then
  echo 'postgres:x:999:999::/var/lib/postgresql:/bin/sh' >> /etc/passwd
  echo 'postgres:x:999:' >> /etc/group
  ln -sf /usr/lib/postgresql/*/bin/* /usr/local/bin/
  exit
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  umask 077
  printf %s "$POSTGRES_PASSWORD" > /tmp/password
  initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256 \
    --encoding=UTF8 --locale=C --pgdata="$PGDATA"
  rm /tmp/password
  echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
  echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D "$PGDATA" postgres
fi
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql
