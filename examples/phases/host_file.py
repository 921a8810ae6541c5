# Seed 003, "Example": one by one. Of Python 2 there was one line: `except subprocess.CalledProcessError, e`.
import subprocess

def handle(handler):
    for resource in handler.getResources():
        try:
            subprocess.check_call(["ssh", "user@remotehost", "touch", resource.getAsString("Name")])
            handler.setCompleted(resource)
        except subprocess.CalledProcessError as e:
            handler.setFailed(resource, "Failed to create file: %s" % e)
