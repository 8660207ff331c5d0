#!/bin/sh
# Runs Redis where compose.tls.yaml has it speak TLS, and has it read its certificate when the files change. What is
# given are more of redis-server's flags.
set -eu
cert=/etc/pagewire/certs/pod.pem key=/etc/pagewire/certs/pod.key ca=/etc/pagewire/certs/ca.pem
umask 077

# Redis reads its certificate when it is told to, by a user whose password nobody else ever sees.
renewer=$(head -c 32 /dev/urandom | sha256sum | cut -c 1-64)
[ ${#renewer} = 64 ]
cat /run/redis-acl/users.acl > /tmp/users.acl
echo "user renewer on >$renewer resetchannels -@all +config|set" >> /tmp/users.acl

seen=$(sha256sum $cert $key $ca)  # before Redis reads them: at worst it is told once in vain
renew() {
  while sleep "${RENEW_S:-30}"; do
    now=$(sha256sum $cert $key $ca) && [ "$now" != "$seen" ] || continue
    said=$(REDISCLI_AUTH=$renewer redis-cli -s /tmp/socket --user renewer CONFIG SET \
      tls-cert-file $cert tls-key-file $key tls-ca-cert-file $ca) || said=$?
    if [ "$said" = OK ]; then seen=$now; else echo "the certificate from before stays: $said"; fi
  done
}
renew &

exec redis-server --aclfile /tmp/users.acl --port 0 --tls-port 6379 --tls-cert-file $cert --tls-key-file $key \
  --tls-ca-cert-file $ca --tls-auth-clients yes --unixsocket /tmp/socket --unixsocketperm 600 "$@"
