# Seed 003, "Example": all in one command. If it fails, all fail.
import subprocess

def handle(handler):
    args = ["ssh", "user@remotehost", "touch"]
    args.extend([resource.getAsString("Name") for resource in handler.getResources()])
    subprocess.check_call(args)
    handler.setCompleted(handler.getResources())
