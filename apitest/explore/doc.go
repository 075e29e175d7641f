// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package explore tests controllers with faults, such as crashes and failed requests. It
// runs them against package apitest once for every fault and every place at which it can
// occur, and reports the runs that end differently.
//
// # Usage
//
//	func TestExplore(t *testing.T) {
//		explore.Run(t, explore.Config{}, func(w *explore.World) explore.Scenario {
//			w.Server.Put(parent)
//			return explore.Scenario{
//				Programs: []explore.Program{{Name: "controller", Run: func(ctx context.Context, p *explore.Process) error {
//					return mypkg.Run(ctx, p.Config)
//				}}},
//				Steps: []explore.Step{{Name: "scale up", Do: scale(w, 3), Until: replicas(w, 3)}},
//			}
//		})
//	}
//
// The function is called for each run. Everything that it makes belongs to that run, so
// its closures may share variables. A program needs only a *rest.Config. So controllers of
// client-go and managers of controller-runtime can be tested, too.
//
// # Behavior
//
// The scenario is run without faults first. This run is the reference: it shows every
// request of every program until the last step is reached. The places for faults are these
// requests and the steps. Then each fault of [Faults] is tried at each of its places. Each
// such run is separate, and uses virtual time. These are findings:
//
//   - an invariant of Scenario.Always is broken
//   - the objects at the end, or after a step, differ from those of the reference
//   - Scenario.Finally fails
//   - a step is not reached, or a program does not return, within Config.Deadline
//   - there are many more requests an hour than in the reference
//   - a program panics, a goroutine is left, or the process ends
//
// The comparison ignores times, UIDs, resourceVersions, generations, managed fields,
// Events, the order of lists that are maps or sets, addresses and node ports that the server
// allocates, fields in which runs without faults differ, and Config.Ignore. Some of these runs
// have other generated names, UIDs and resourceVersions, so what a program derives from them,
// such as a hash, may differ. Objects with generated names are compared as a group, and so are
// objects whose names are derived. After a fault that changes what programs must do,
// such as the deletion of an object, the objects are not compared.
//
// The objects after a step are compared when all faults have acted and programs have had time to
// finish. Then the next step begins. While a fault lasts that the next step should meet, such as late
// events, the next step begins at once, and a later one is compared. Steps without Until are not
// compared. Fields that depend on the time are left out. If other objects exist a while later, or by
// chance, the step is not compared, and a line on stderr names it.
//
// After each step there is a place at rest, when programs have had time to finish and the
// next step has not begun. There, objects are edited and deleted. An object that a program
// has created for another one, with an owner reference, must come back; see Config.Once.
// ReplicaSets without replicas are the history of a Deployment, and are not compared.
// After the deletion of any other object, the garbage collector runs: at rest, and at the end of
// the run if the deletion was elsewhere. Then it is a finding
// if an object stays that a program has created for it, or if a finalizer of a program stays.
// So it is if something outside of the API stays whose name contains that of the object.
// The edit of an object is an annotation. It is a finding if a program removes it with an
// update without a resourceVersion, because that takes back what the program has not seen.
// In every run, an observedGeneration above the generation is a finding. If programs
// change an object more than twice a second at rest, the run without faults has a problem.
//
// After a fault that changes the world, it is a finding if more objects with one generated name
// exist than at any time in the reference. An object that was created again must have an
// observedGeneration if it has one in the reference. Things outside of the API are compared if
// Scenario.Outside lists them; there, too, an administrator deletes what is at rest.
//
// A finding has a plan. This is one line that repeats the run, with the flag -explore.plan:
//
//	crash after @ controller: create configmaps default/child-* #1
//	crash before @ controller: step scale up #1
//	delete Pod default/a @ controller: rest scale up #1
//
// The first plan is a crash after the program's first request of that kind. The second one
// is a crash before another client scales up, and the third one a deletion after that.
//
// The number counts the requests of the program with that verb and object. An update, patch or
// deletion that the server refuses with Conflict, because another client has changed the object
// first, is not counted and is no place. The program repeats it, and the repetition has its number.
// So the number does not depend on how often other clients come first. All other requests are
// counted, whatever their answer is: a creation of an object that exists, a write to an object
// that is gone, and a server-side apply that conflicts with another owner of a field. So is a
// request that a fault hits; its repetition has the next number. Reads that are part of a
// repetition are counted, so their numbers may vary. A place without a number is every such request.
//
// The flag -explore.list lists the plans, and -explore.faults selects some by their faults.
// -explore.budget and -explore.seed replace fields of Config. A plan with a problem is run three
// times, and the finding says in how many of these runs it had one. A run that makes no step for
// half a minute of real time is stopped and not repeated. Its story has the stacks of the goroutines that keep virtual time
// from moving. The story of a finding shows the journal of its run next to that of the reference.
//
// With Config.Budget or Config.Pairs, plans with two faults follow, such as "503 @ PLACE + crash
// after @ PLACE". Pairs are preferred if
// their first fault led to new sequences of requests. If one of the two faults is enough
// for the problem, the finding has only that fault.
//
// # Crashes
//
// After a crash, no request of the process reaches the server, and no answer reaches the
// process. Then the context of Run is done, and later requests of the program have no
// effect. The program starts again a second later. If it uses files or other systems, it
// must use [Process.Dir], [Process.Call] and [Process.OnCrash]. A custom fault can crash a
// program with [World.Crash].
//
// # Concurrency
//
// Runs are in child processes of the test binary, one for each processor. So a panic is a
// finding and does not end the test. Requests are served one at a time: when everything
// else is blocked, virtual time advances by a nanosecond, and the first of the waiting
// requests, in a sorted order, is served. So two runs of a plan end in the same way, and
// have the same order of requests for each object. The order for different objects may
// differ because of maps, jitter and several workers. If a program holds a lock during a
// request and another goroutine waits for it, requests can't be ordered. A line on stderr
// reports this.
//
// # Failure modes
//
// If a place is not reached, because an earlier fault changed what the program does, or if
// a fault has no effect, the plan is counted in [Report].Missed. [Report].Faults has the counts
// of each fault, and Run logs the faults that never had an effect. Some things can't be simulated: a takeover pauses
// requests, calls and watch events, but not computation; a page of a file is never half
// written; and package variables survive a crash. If a program calls os.Exit, the process
// ends, which is a finding. With Config.InProcess, a run that computes without an end is not
// stopped. No fault is tried at a request that writes an Event.
//
// There is no promise of compatibility before version 1.0. Plan lines may change.
package explore
