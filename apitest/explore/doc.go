// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package explore runs controllers against package apitest once for every fault and every
// place that the fault can hit, and reports the runs that end differently.
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
// The function is called for each run. All that it makes belongs to that run, so its
// closures may share variables. A program needs a *rest.Config, and nothing of this
// library: controllers of client-go and managers of controller-runtime can be explored.
//
// # Behavior
//
// The scenario is run without faults first. That reference shows every request of every
// program until the last step is reached. Then each fault of [Faults] is tried at each of
// its places, which are those requests and the steps, in a run of its own, in virtual
// time. These are findings:
//
//   - an invariant of Scenario.Always is broken
//   - the objects at the end differ from those of the reference, or Scenario.Finally fails
//   - a step is not reached, or a program does not return, within Config.Deadline
//   - there are many more requests an hour than in the reference
//   - a program panics, a goroutine is left, or the process ends
//
// The comparison leaves out times, UIDs, resourceVersions, generations, managed fields,
// Events, the order of lists that are maps or sets, fields in which two runs without faults
// differ, and Config.Ignore. Objects with generated names are compared as a group. A fault
// that changes the world, such as the deletion of an object, is not followed by a comparison.
//
// A finding has a plan, one line that replays it with the flag -explore.plan:
//
//	crash after @ controller: create configmaps default/child-* #1
//	crash before @ controller: step scale up #1
//
// The first is a crash after the first such request of the program, the second one while
// another client acts. A plan with a problem is run three times
// before it is a finding, and a plan with two faults is replaced by one of them
// if that is enough. The story of a finding has both journals side by side.
//
// With Config.Budget or Config.Pairs, plans with two faults follow. Pairs whose first fault led to new
// sequences of requests are preferred.
//
// # Crashes
//
// From the instant of a crash, no request of the process reaches the server, and no answer
// reaches the process. Then the context of Run is done; later actions of the program have
// no effect. The program starts again a second later. Its files and its calls to
// anything else need a gate: [Process.Dir], [Process.Call] and [Process.OnCrash]. A fault of
// the caller's own crashes programs with [World.Crash].
//
// # Concurrency
//
// Runs are in child processes of the test binary, one for each processor, so a
// panic is a finding and does not end the test. Requests pass a turnstile: virtual time
// moves by a nanosecond and one request goes on, in a sorted order, when everything else is blocked. So
// the order of goroutines rarely matters; maps, jitter and several workers can still change
// it. The promise is the same end and the same order of requests for each object. If
// programs hold a lock during requests for which others wait, requests are not
// ordered, and a line on stderr says so.
//
// # Failure modes
//
// A place that is not reached, because an earlier fault led elsewhere, is counted in
// [Report].Missed. These can't be simulated within one process: SIGSTOP of all its threads (a
// takeover pauses requests, calls and watch events, not computation), a torn page of a
// file, and package variables, which survive a crash. A program that calls os.Exit ends its
// process, which is a finding. Events are requests, but no places for faults.
//
// # Compatibility
//
// There is no promise of compatibility before version 1.0. Plan lines may change.
package explore
