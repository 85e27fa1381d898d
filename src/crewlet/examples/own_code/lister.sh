#!/bin/sh
# A seat in shell: what it prints is the protocol, one JSON object a line (docs/command-protocol.md).

read -r start
case "$start" in
  '{"v":1,'*) ;;
  *) echo '{"outcome": "failed", "detail": "this script speaks version 1"}'; exit ;;
esac
echo '{"progress": "looking around"}'
files=$(ls | wc -l)

# May this turn still act? The answer comes on standard input, or this process is ended instead.
echo '{"check": {}}'
read -r term
echo "{\"outcome\": \"delivered\", \"detail\": \"$((files)) files at epoch $CREWLET_TERM_EPOCH\"}"
