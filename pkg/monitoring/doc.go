// Package monitoring is what the manifests of the checks' front door say (seed 002): the specs of repositories, buckets,
// groups, clusters, nodes, monitoring systems, capabilities and check configurations; and the deployment details that are
// assembled of them ("check instance configuration computation").
//
//	kind: Repository           # metadata.name prod
//	spec: {team: ops}
//	kind: Bucket               # prod/live: it stands on prod
//	spec: {environment: live}
//	kind: Group, Cluster       # prod/live/web
//	spec: {}
//	kind: Node                 # prod/live/web/web-1
//	spec: {assetId: 17, datacenter: de.fra, properties: {fqdn: web-1.example.com}}
//	kind: MonitoringSystem     # eye
//	spec:
//	  callback: http://127.0.0.1:7777/api/v1/notify   # none: the system polls
//	  generation: "0.8"        # or "0.9": its task words, and the path that a poke names
//	  path: /deployments/id    # instead of the generation's own
//	  ordering: immediate      # or queued, as both generations' code has it
//	  pokesMax: 8              # pokes under way at once
//	  timeout: 500ms           # of a poke
//	kind: Capability           # eye.local.cpu
//	spec: {system: eye, view: local, metric: {path: cpu.usage.percent, unit: "%"}, thresholds: 3}
//	kind: CheckConfiguration   # prod/cpu: of repository prod
//	spec:
//	  on: prod/live
//	  capability: eye.local.cpu
//	  interval: 60s
//	  inheritance: true        # also on the objects below
//	  childrenOnly: false      # and not on the object itself
//	  objectTypes: [Node]      # none: groups, clusters and nodes
//	  thresholds: [{predicate: ">=", level: {name: critical, shortName: crit, numeric: 2}, value: 95}]
//
// Everything is a function of its arguments. Intake decodes what is applied, so that what is wrong is refused with its field;
// owners decode it again.
//
// # Absent on purpose
//
// Constraints and service properties: one check makes one instance on an object. Teams, on-call duties, servers: their fields
// are sent, and empty but for names.
package monitoring
