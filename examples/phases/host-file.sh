#!/bin/sh
# The host file again, in shell: one process a call. The names of the call's resources are also in a file, a line each, for
# programs that cannot read JSON. An answer names the resource as JSON does.
while IFS= read -r name; do
  quoted=$(printf %s "$name" | sed 's/["\\]/\\&/g')
  if error=$(touch -- "$HOST_FILES/$name" 2>&1); then
    printf '{"resource": "%s", "outcome": "completed"}\n' "$quoted"
  else
    echo "$error" >&2
    printf '{"resource": "%s", "outcome": "failed", "message": "no host file"}\n' "$quoted"
  fi
done < "$DROVER_NAMES_FILE"
