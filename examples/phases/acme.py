"""A client of the Acme cloud: HTTP and JSON, at the address in ACME_URL."""

import json
import os
import urllib.request


def _post(path, body):
    request = urllib.request.Request(
        os.environ["ACME_URL"] + path, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)


def create_volume(creds, params):
    return _post("/volumes", {"creds": creds, "params": params})["id"]


def create_instance(creds, params):
    return _post("/instances", {"creds": creds, "params": params})["id"]
