// Package e2e holds the tests that look at the whole house from outside: real processes of every service, a real NATS
// server that syncs every write, and clients that know the public surface (contract.md) and nothing else.
//
//	TestKill9        hundreds of kill -9 of services and server, at random and at named points; then every promise
//	TestShare        two orchestrators and two runners share 1,000 resources, and one of each is killed
//	TestScenario     one table of what was asked and what happened, the same on one server and on three
//	TestBadInput     every refusal names its field and leaves nothing behind, through both doors
//	TestUpgrade      a version and the next one share a fleet, forward and back
//	TestTrees        an execution of dependent items, deployed, failed, mended and deleted, everybody with rights and killed
//	TestGrove        an installation of executions of items: three levels
//	TestBlueprintDeletion  a deletion is ended, at whatever point its owner dies
//	TestPoison       what nobody can read is set aside, and holds up nothing
//	TestMachines     machine agents over TLS, while everything is killed once in their middle
//	TestChecks       checks are rolled out, changed and deleted while everything is killed in each stage
//	TestServices     NCAE's service instances, whose module calls back, while everybody dies where it leaves most behind
//	TestCallbacks    callbacks: early, late, twice, never, of another transaction, with no owner
//	TestPlugins      plugins announce and carry out phases while everything is killed
//	TestRestore      a fleet at work is backed up, destroyed, and made again on an empty server
//	TestContainers   the compose file's cluster: everything is killed, restarted, scaled, cut off (make e2e)
//	TestThreadsInContainers  TestTrees, TestGrove, TestMachines, TestChecks, TestServices, TestCallbacks and TestPlugins on it
//	TestPlainClient  a NATS client without our code commands, follows, reads, and works
//
// Everything that is started dies with the test process, however that ends. The environment:
//
//	DROVER_KILLS=1000        kills of TestKill9, instead of as many as fit into its usual time; and TestTrees with 1,000
//	                         items on one server and on three, with so many kills more than one of each in each job;
//	                         and how often TestContainers kills each NATS server
//	DROVER_TREE=300          items of that TestTrees
//	DROVER_SEED=7            the seed of both, and of what threads kill, instead of one drawn; which is printed
//	DROVER_THREADS=1         the threads of the front doors on three servers too, and TestPlugins (make threads)
//	DROVER_CONTAINERS=dev    TestContainers and TestThreadsInContainers, with the images of this tag, and nothing else;
//	                         DROVER_COMPOSE="docker compose" is the command to use instead of docker-compose
//	DROVER_E2E_KEEP=/folder  where to leave logs and journals, instead of removing them
//
// # Absent on purpose
//
// No container and no network but loopback, what make e2e runs apart. No hook into the services but the crash points of pkg/host.
package e2e
