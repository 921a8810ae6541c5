"""Runs a plugin module in the form of CycleCloud (seed 003) for `drover plugin exec`: Python 3, standard library only.

The module has handle(handler) (a phase plugin), onStateTransition(event) (a state listener), or both, and stays loaded.
Each line on stdin is one call; answers are lines on stdout. What the module itself prints, or has its own programs print,
goes to stderr, and those programs read an empty stdin: both pipes are Drover's.
"""

import importlib
import importlib.util
import json
import os
import sys
import traceback


class Record(object):
    """Named values. None, and a value that is not there, are undefined."""

    def __init__(self, values):
        self._values = values
        self._changed = {}

    def _lookup(self, name):
        if name in self._changed:
            return self._changed[name]
        return self._values.get(name)

    def get(self, name, default=None):
        value = self._lookup(name)
        return default if value is None else value

    def isDefined(self, name):
        return self._lookup(name) is not None

    def getAsString(self, name, default=None):
        value = self._lookup(name)
        if value is None:
            return default
        return value if isinstance(value, str) else json.dumps(value)

    def getAsInteger(self, name, default=None):
        value = self._lookup(name)
        return default if value is None else int(value)

    def getAsFloat(self, name, default=None):
        value = self._lookup(name)
        return default if value is None else float(value)

    def getAsBoolean(self, name, default=None):
        value = self._lookup(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise ValueError("%s is not a boolean: %r" % (name, value))

    def getAsList(self, name, default=None):
        value = self._lookup(name)
        if value is None:
            return default
        return list(value) if isinstance(value, list) else [value]

    getAsLong = getAsInteger
    getAsDouble = getAsFloat

    def getAttributeNames(self):
        return sorted(n for n in set(self._values) | set(self._changed) if self.isDefined(n))

    def set(self, name, value):
        if not isinstance(name, str) or not name:
            raise ValueError("the name of a value must be text: %r" % (name,))
        # A value is kept as what it will be when it is read again; what JSON cannot hold fails here, in the plugin's line.
        self._changed[name] = json.loads(json.dumps(value, allow_nan=False))

    def setString(self, name, value):
        self.set(name, None if value is None else str(value))

    def setInteger(self, name, value):
        self.set(name, None if value is None else int(value))

    def setFloat(self, name, value):
        self.set(name, None if value is None else float(value))

    def setBoolean(self, name, value):
        self.set(name, None if value is None else bool(value))

    def setList(self, name, value):
        self.set(name, None if value is None else list(value))

    setLong = setInteger
    setDouble = setFloat

    def undefine(self, name):
        self.set(name, None)

    def _take(self):
        """What was changed since the last time."""
        changed, self._changed = self._changed, {}
        self._values.update(changed)
        return changed


class Resource(Record):
    """A resource: what it is itself (OWN), then its attributes, then the fields of its spec. What is set is an attribute."""

    OWN = {"Name": "name", "Type": "kind", "State": "state", "TargetState": "target", "ClusterName": "cluster"}

    def __init__(self, line):
        values = dict(line["spec"])
        for name, value in line["attributes"].items():
            if value is not None:
                values[name] = value
        for name, field in self.OWN.items():
            values[name] = line[field]
        Record.__init__(self, values)
        self._line = line
        self._data = Record(dict(line.get("data") or {}))

    def set(self, name, value):
        if name in self.OWN:
            raise ValueError("%s is the resource's own, and cannot be set" % name)
        Record.set(self, name, value)

    def getName(self):
        return self._line["name"]

    def getUid(self):
        return self._line["uid"]

    def getLabels(self):
        return dict(self._line["labels"])

    def isUndo(self):
        """Whether the phase is to be undone for this resource."""
        return self._line.get("undo", False)

    def wasDeployed(self):
        return self._line["wasDeployed"]

    def __repr__(self):
        return "<%s %s>" % (self._line["kind"], self._line["name"])


class Handler(object):
    """What handle(handler) is given."""

    def __init__(self, call, answer):
        self._call = call
        self._answer = answer
        self._resources = [Resource(line) for line in call["resources"]]
        self._own_ids = set(id(resource) for resource in self._resources)

    def getResources(self):
        return list(self._resources)

    def getPhaseName(self):
        return self._call["phase"]

    def getProject(self):
        return self._call["project"]

    def getResourcePhaseData(self, resource):
        return self._own(resource)._data

    def setCompleted(self, resources):
        for resource in self._each(resources):
            self._save(resource, {"outcome": "completed"})

    def setFailed(self, resources, message="", retryable=False):
        for resource in self._each(resources):
            self._save(resource, {"outcome": "failed", "message": str(message), "retryable": bool(retryable)})

    def setPending(self, resources, message="", delay=None):
        """Called again after delay seconds (None: the phase's interval): the same as no answer, with a message."""
        for resource in self._each(resources):
            answer = {"outcome": "pending", "message": str(message)}
            if delay is not None:
                answer["delay"] = "%dms" % round(delay * 1000)
            self._save(resource, answer)

    def log(self, resource, text):
        """Prints to the resource's output (drover logs)."""
        self._answer({"resource": self._own(resource).getName(), "kind": resource._line["kind"], "log": str(text)})

    def _own(self, resource):
        if id(resource) not in self._own_ids:
            raise ValueError("not a resource of this call: %r" % (resource,))
        return resource

    def _each(self, resources):
        if isinstance(resources, Resource):
            resources = [resources]
        return [self._own(resource) for resource in resources]

    def _save(self, resource, answer):
        attributes, data = resource._take(), resource._data._take()
        if attributes:
            answer["attributes"] = attributes
        if data:
            answer["data"] = data
        if answer:
            answer["resource"], answer["kind"] = resource.getName(), resource._line["kind"]
            self._answer(answer)

    def _saveAll(self):
        for resource in self._resources:
            self._save(resource, {})


class StateEvent(object):
    """What onStateTransition(event) is given."""

    def __init__(self, call):
        self._call = call
        self._resources = [Resource(line) for line in call["resources"]]

    def getType(self):
        return self._call["type"]

    def getState(self):
        return self._call["state"]

    def getClusterName(self):
        return self._call["cluster"]

    def getResources(self):
        return list(self._resources)


def load(module):
    """The module of a name, or the file of a path."""
    if not module.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(module)
    path = os.path.abspath(module)
    sys.path.insert(0, os.path.dirname(path))
    name = os.path.splitext(os.path.basename(path))[0].replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def carry_out(module, call, answer):
    """One call. What it raises is the call's exception; what was set is saved all the same."""
    function = getattr(module, call["function"], None)
    if function is None:
        raise AttributeError("the module has no function %s" % call["function"])
    if call["function"] != "handle":
        function(StateEvent(call))
        return
    handler = Handler(call, answer)
    try:
        function(handler)
    finally:
        handler._saveAll()


def text_of(error):
    return str(error) or type(error).__name__


def main(arguments):
    check, module = arguments[:1] == ["--check"], arguments[-1]
    calls = os.fdopen(os.dup(0), "r", encoding="utf-8", newline="\n")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)

    def answer(line):
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    try:
        loaded = load(module)
    except SyntaxError as error:
        sys.stderr.write("%s\n" % error)
        if check:
            sys.stderr.write("if this is Python 2: `except X, e` is now `except X as e`, and print is a function\n")
        return 1
    if check:
        for name in ("handle", "onStateTransition"):
            if callable(getattr(loaded, name, None)):
                answers.write(name + "\n")
        answers.flush()
        return 0
    for line in calls:
        try:
            carry_out(loaded, json.loads(line), answer)
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            answer({"error": text_of(error)})
        answer({"end": True})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
