package schema

import (
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/listener"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/monitoring"
	"github.com/droverproject/drover/pkg/rebar"
)

// field is what is said of one field beside its type.
type field struct {
	doc    string
	need   bool
	limits map[string]any // words of JSON Schema
}

func chars(n int) map[string]any { return map[string]any{"maxLength": n} }
func items(n int) map[string]any { return map[string]any{"maxItems": n} }
func names(n int) map[string]any { return map[string]any{"maxProperties": n} }
func words(words ...any) map[string]any {
	return map[string]any{"enum": words}
}

// name is a name that is given.
func name() map[string]any {
	return map[string]any{"minLength": 1, "maxLength": blueprint.NameBytesMax}
}

func text() map[string]any { return chars(monitoring.TextBytesMax) }

func needed() map[string]any {
	return map[string]any{"minLength": 1, "maxLength": monitoring.TextBytesMax}
}

var objectFields = map[string]field{
	"assetId":      {doc: "The node's number, for monitoring systems. Only a Node has one, and must."},
	"datacenter":   {doc: "Where it is.", limits: text()},
	"offline":      {doc: "True where a Node is switched off."},
	"properties":   {doc: "Values by name, which go into the deployments.", limits: names(monitoring.PropertiesMax)},
	"properties.*": {limits: chars(4 * monitoring.TextBytesMax)},
}

func nodeFields() map[string]field {
	all := map[string]field{}
	for path, f := range objectFields {
		all[path] = f
	}
	all["assetId"] = field{doc: "The node's number, for monitoring systems.", need: true, limits: map[string]any{"minimum": 1}}
	return all
}

// fields are the fields of each kind, by their paths below spec ("templates[].name"; "[]" is an item, ".*" a value).
var fields = map[string]map[string]field{
	"Repository": {"team": {doc: "Team that it belongs to.", limits: text()}},
	"Bucket":     {"environment": {doc: "Environment, as in production.", limits: text()}},
	"Group":      objectFields,
	"Cluster":    objectFields,
	"Node":       nodeFields(),
	"MonitoringSystem": {
		"callback":   {doc: "URL that is called where there is news (http or https, without user name and password). Default: none, it asks by itself.", limits: chars(monitoring.URLBytesMax)},
		"mode":       {doc: "Mode, for people.", limits: text()},
		"contact":    {doc: "Whom to ask.", limits: text()},
		"team":       {doc: "Team that it belongs to.", limits: text()},
		"generation": {doc: "Generation of SOMA's deployment API that it speaks. Default: 0.8.", limits: words("", "0.8", "0.9")},
		"path":       {doc: "Path that a poke names, and below which it fetches; begins with a slash. Default: that of its generation.", limits: map[string]any{"maxLength": monitoring.TextBytesMax, "pattern": "^(/.*)?$"}},
		"ordering":   {doc: "Whether a changed check is delivered at once (default), or with the next sweep.", limits: words("", "immediate", "queued")},
		"pokesMax":   {doc: "Pokes under way from one notifier. Default: 8.", limits: map[string]any{"minimum": 0, "maximum": monitoring.PokesMaxMost}},
		"timeout":    {doc: "Time for a poke, at most 30s. Default: 1s."},
	},
	"Capability": {
		"system":             {doc: "Monitoring system.", need: true, limits: needed()},
		"view":               {doc: "View, as in local or external.", limits: text()},
		"metric":             {doc: "What it measures.", need: true},
		"metric.path":        {doc: "Path of the metric.", need: true, limits: needed()},
		"metric.unit":        {doc: "Its unit.", limits: text()},
		"metric.unitName":    {doc: "The unit's name.", limits: text()},
		"metric.description": {doc: "What it is, for people.", limits: text()},
		"thresholds":         {doc: "Thresholds that it can hold; 0: any number.", limits: map[string]any{"minimum": 0, "maximum": monitoring.ThresholdsMax}},
	},
	"CheckConfiguration": {
		"on":                           {doc: "Name of the object that it is placed on, of the same repository.", need: true, limits: needed()},
		"capability":                   {doc: "Name of the capability.", need: true, limits: needed()},
		"interval":                     {doc: "Time between two checks: whole seconds, 1s to 24h.", need: true},
		"inheritance":                  {doc: "False: on the object alone. Default: also on what is below it."},
		"childrenOnly":                 {doc: "True: not on the object itself."},
		"objectTypes":                  {doc: "Kinds of objects that get instances. Default: all."},
		"objectTypes[]":                {doc: "Kind.", limits: words("Group", "Cluster", "Node")},
		"externalId":                   {doc: "Id that another system has for it.", limits: text()},
		"thresholds":                   {doc: "When to raise an alarm.", need: true, limits: map[string]any{"minItems": 1, "maxItems": monitoring.ThresholdsMax}},
		"thresholds[].predicate":       {doc: "How the value is compared.", need: true, limits: words("<", "<=", "==", ">=", ">", "!=")},
		"thresholds[].level":           {doc: "Level of the alarm.", need: true},
		"thresholds[].level.name":      {doc: "Its name.", need: true, limits: needed()},
		"thresholds[].level.shortName": {doc: "Its short name.", limits: text()},
		"thresholds[].level.numeric":   {doc: "Its number.", need: true, limits: map[string]any{"minimum": 1, "maximum": 65535}},
		"thresholds[].value":           {doc: "What is compared with."},
	},
	"Task": {
		"description":          {doc: "What it does, for people."},
		"templates":            {doc: "Parts, in the order in which agents get them.", limits: items(rebar.TemplatesMax)},
		"templates[].name":     {doc: "Name, once in the task.", need: true, limits: name()},
		"templates[].path":     {doc: "File to be written. Default: the part is a script to be executed.", limits: chars(rebar.PathBytesMax)},
		"templates[].contents": {doc: "Text of the script or the file; a Go template over the machine.", limits: chars(rebar.ContentsBytesMax)},
		"templates[].meta":     {doc: "Texts by name, for the agent.", limits: names(rebar.MetaMax)},
		"templates[].meta.*":   {limits: chars(machine.TextBytesMax)},
		"meta":                 {doc: "Texts by name, for the agent.", limits: names(rebar.MetaMax)},
		"meta.*":               {limits: chars(machine.TextBytesMax)},
	},
	"Stage": {
		"description": {doc: "What it is for, for people."},
		"bootEnv":     {doc: "Boot environment that the machine must be in.", limits: chars(blueprint.NameBytesMax)},
		"tasks":       {doc: "Tasks, and entries `context:…`, `action:…`, `chroot:…`, `bootenv:…`, in their order.", limits: items(rebar.StageTasksMax)},
		"tasks[]":     {doc: "Entry.", limits: name()},
	},
	"Workflow": {
		"description": {doc: "What it is for, for people."},
		"stages":      {doc: "Stages, in their order.", limits: items(rebar.StagesMax)},
		"stages[]":    {doc: "Name of a stage.", limits: name()},
	},
	"BootEnv": {"description": {doc: "What it is for, for people."}},
	"Machine": {
		"description": {doc: "What it is, for people.", limits: chars(machine.TextBytesMax)},
		"workflow":    {doc: "Workflow to begin; not with stage and bootEnv. Empty: none.", limits: chars(blueprint.NameBytesMax)},
		"stage":       {doc: "Stage to be in.", limits: chars(blueprint.NameBytesMax)},
		"bootEnv":     {doc: "Boot environment to be in.", limits: chars(blueprint.NameBytesMax)},
		"runnable":    {doc: "True where its agent may go on with its tasks."},
		"available":   {doc: "False: it is out of use."},
		"meta":        {doc: "Texts by name.", limits: names(rebar.MetaMax)},
		"meta.*":      {limits: chars(machine.TextBytesMax)},
		"params":      {doc: "Parameters by name: any JSON.", limits: names(machine.ParamsMax)},
	},
}

// listenerSpec is the schema of a listener's spec, whose kinds and states are one text or several.
func listenerSpec() map[string]any {
	some := func(most int, doc string) map[string]any {
		return map[string]any{"description": doc, "anyOf": []any{
			map[string]any{"type": "string", "minLength": 1, "maxLength": blueprint.NameBytesMax},
			map[string]any{"type": "array", "minItems": 1, "maxItems": most, "items": map[string]any{"type": "string", "minLength": 1, "maxLength": blueprint.NameBytesMax}},
		}}
	}
	headers := func(doc string, value map[string]any) map[string]any {
		return map[string]any{"type": []any{"object", "null"}, "description": doc, "maxProperties": listener.HeadersMax, "additionalProperties": value}
	}
	secret := map[string]any{"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]*$", "maxLength": listener.SecretNameBytesMax}
	webhook := map[string]any{"type": []any{"object", "null"}, "description": "HTTP request that tells it; this or subject.", "additionalProperties": false,
		"required": []any{"url"}, "properties": map[string]any{
			"url":           map[string]any{"type": "string", "description": "http or https, without user name and password.", "pattern": "^[hH][tT][tT][pP][sS]?://", "maxLength": listener.URLBytesMax},
			"headers":       headers("Headers, sent as they are: nothing secret.", map[string]any{"type": "string", "maxLength": listener.HeaderValueBytesMax}),
			"secretHeaders": headers("Headers whose values are secrets of these names.", secret),
			"secret":        map[string]any{"type": []any{"string", "null"}, "description": "Name of the secret that signs the body. Default: unsigned.", "maxLength": listener.SecretNameBytesMax},
		}}
	return map[string]any{"type": "object", "additionalProperties": false, "required": []any{"kinds", "states"}, "properties": map[string]any{
		"kinds":   some(listener.KindsMax, "Kinds of the resources: one, or a list."),
		"states":  some(listener.StatesMax, "States that they reach: one, or a list."),
		"project": map[string]any{"type": []any{"string", "null"}, "description": "Whose resources: the listener's own project, and no other.", "minLength": 1, "maxLength": blueprint.NameBytesMax},
		"webhook": webhook,
		"subject": map[string]any{"type": []any{"string", "null"}, "description": "Subject under drover.notice. that tells it; this or webhook.", "pattern": `^drover\.notice\.`, "maxLength": listener.SubjectBytesMax},
	}, "oneOf": []any{given("webhook", "object"), given("subject", "string")}}
}

// given says that a field is there, and not null.
func given(name, kind string) map[string]any {
	return map[string]any{"required": []any{name}, "properties": map[string]any{name: map[string]any{"type": kind}}}
}

// Limit is one bound of what users write, by its name.
type Limit struct {
	Value int
	Unit  string
	Of    string
}

// Limits are those of manifests that no field's line says.
func Limits() []Limit {
	return []Limit{
		{manifest.FileBytesMax >> 20, "MiB", "file of manifests"},
		{manifest.DocumentsMax, "manifests", "file"},
		{resource.SpecBytesMax >> 10, "KiB", "spec, as JSON"},
		{blueprint.NameBytesMax, "bytes", "name of a resource, kind, project, cluster, phase, state or label; printable, no space at its ends"},
		{manifest.LabelBytesMax, "bytes", "value of a label"},
		{resource.LabelsMax, "labels", "resource"},
		{blueprint.PhasesMax, "phases", "blueprint"},
		{blueprint.StatesMax, "states", "path of a flow"},
		{blueprint.DependsOnMax, "dependencies", "phase"},
		{blueprint.FlowsMax, "flows", "lifecycle"},
		{blueprint.VerbBytesMax, "bytes", "verb"},
		{blueprint.TextBytesMax, "bytes", "description or text of a phase"},
		{blueprint.WhenBytesMax, "bytes", "`when` of a phase"},
		{blueprint.RetryAttemptsMax, "attempts", "retry of a phase"},
		{int(blueprint.RetryDelayMax.Hours()), "hours", "delay of a retry"},
		{int(blueprint.TimeoutMax.Hours()), "hours", "timeout of a phase"},
		{int(blueprint.IntervalMax.Hours()), "hours", "interval or lease of a phase"},
		{manifest.PhaseAttributesMax, "attributes", "phase"},
		{manifest.PhaseAttributesBytesMax, "bytes", "attributes of a phase, names and values together"},
		{manifest.TemplateBytesMax, "bytes", "body of an HTTP request"},
		{manifest.ArgumentBytesMax, "bytes", "URL, header, argument or environment variable"},
		{manifest.ListMax, "entries", "headers, arguments, environment, captures or status rules of an executor"},
		{int(manifest.RequestTimeMax.Minutes()), "minutes", "timeout of one HTTP request"},
		{int(manifest.ScriptGraceMax.Minutes()), "minutes", "grace of a script that is told to stop"},
		{manifest.ScriptOutputMax >> 20, "MiB", "output of a script; the rest is dropped"},
		{children.ItemsMax, "items", "parent's spec"},
	}
}
