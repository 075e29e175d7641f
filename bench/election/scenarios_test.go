// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"fmt"
	"math"
	"net/http"
	"regexp"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/apitest"
)

// scenario is an event that happens to a group of candidates.
type scenario struct {
	name string
	// rows are the names of the measurements, in seconds unless the name has a
	// unit. Less is better in all of them.
	rows []string
	// runs is the maximum number of measurements; 0 means the value of the
	// flag.
	runs int
	// least is the minimum number of measurements, for a wide distribution.
	least int
	// preference marks a scenario that needs a system in which one candidate is
	// better than another.
	preference bool
	run        func(w *world) []float64
}

var never = math.Inf(1)

// patience bounds the wait for events that should happen within seconds.
const patience = 10 * time.Minute

// termsRow is the number of terms of candidates of which none is better than the others.
// Candidates of this library have one.
const termsRow = "terms"

var scenarios = []scenario{
	{name: "crash", rows: []string{"crash fail-over"}, run: crash},
	{name: "exit", rows: []string{"graceful exit: leaderless"}, run: gracefulExit},
	{name: "better", rows: []string{"better candidate joins: leaderless", "better candidate joins: until it leads"}, run: betterJoins},
	{name: "dead", rows: []string{"better candidate dies when its record is there: leaderless in 5 min", "and requests per second"}, preference: true, runs: 20, run: deadOnArrival},
	{name: "offered", rows: []string{"candidate dies when it is offered the lease: leaderless in 5 min"}, preference: true, least: 60, run: deadWhenOffered},
	{name: "first", rows: []string{"first election"}, run: first},
	{name: "upgrade", rows: []string{"rolling upgrade of 3 replicas: leaderless", "requests per second in the 20 min after it"}, runs: 10, run: upgrade},
	{name: "steady", rows: []string{"requests per second, 5 candidates"}, runs: 5, run: steady},
	{name: "crowd", rows: []string{"requests and watch events per second, 200 candidates"}, runs: 1, run: crowd},
	{name: "ties", rows: []string{"5 equal candidates of one second: leaderless, % of 25 min", termsRow, "requests per second"}, runs: 10, run: ties},
	{name: "slow clocks", rows: []string{"candidates' clocks 6 s behind: leaderless, % of a minute", "requests per second"}, runs: 3, run: slowClocks},
	{name: "fast clock", rows: []string{"leader's clock 10 min ahead: crash fail-over"}, runs: 10, run: fastClock},
	{name: "partition", rows: []string{"leader cut off: until another leads", "two leaders until then"}, run: partitioned},
	{name: "deleted", rows: []string{"Lease deleted by hand: two leaders"}, run: deleted},
}

// phase waits for a random time, so that the next step is not in phase with any
// timer.
func (w *world) phase() { time.Sleep(w.rng.between(0, 10*time.Second)) }

// next waits for a leader other than old, and returns its name and when its
// term began.
func (w *world) next(old string, limit time.Duration) (name string, at time.Time, ok bool) {
	ok = w.ledger.await(limit, func(leader string) bool { name = leader; return leader != old })
	return name, time.Now(), ok
}

// until returns the seconds from begin to at, or never if ok is false.
func until(begin, at time.Time, ok bool) float64 {
	if !ok {
		return never
	}
	return at.Sub(begin).Seconds()
}

func (w *world) leaderless(from time.Time) float64 {
	none, _, _ := w.ledger.tally(from, time.Now())
	return none.Seconds()
}

func (w *world) twoLeaders(from time.Time) float64 {
	_, several, _ := w.ledger.tally(from, time.Now())
	return several.Seconds()
}

func crash(w *world) []float64 {
	w.startApart(3)
	leader := w.leader()
	time.Sleep(40 * time.Second)
	w.phase()
	begin := time.Now()
	leader.crash()
	_, at, ok := w.next(leader.name, patience)
	return []float64{until(begin, at, ok)}
}

func gracefulExit(w *world) []float64 {
	w.startApart(3)
	leader := w.leader()
	time.Sleep(40 * time.Second)
	w.phase()
	begin := time.Now()
	leader.cancel()
	_, _, ok := w.next(leader.name, patience)
	if !ok {
		return []float64{never}
	}
	return []float64{w.leaderless(begin)}
}

// join adds a better candidate to two others, one of which has led for a
// minute.
func (w *world) join() (old, better *process, begin time.Time) {
	old = w.start(&process{name: "old", version: "1.31.0"})
	w.leader()
	time.Sleep(2 * time.Second)
	w.start(&process{name: "other", version: "1.31.0"})
	time.Sleep(60 * time.Second)
	w.phase()
	return old, w.start(&process{name: "better", version: "1.30.0"}), time.Now()
}

func betterJoins(w *world) []float64 {
	old, _, begin := w.join()
	_, at, ok := w.next(old.name, 5*time.Minute)
	if !ok {
		return []float64{never, never}
	}
	return []float64{w.leaderless(begin), until(begin, at, ok)}
}

// deadOnArrival kills a better candidate as soon as the server has its record.
func deadOnArrival(w *world) []float64 {
	_, better, begin := w.join()
	if !w.request(time.Minute, func(r apitest.Request) bool { return r.User.Name == better.name && r.Method != http.MethodGet }) {
		w.t.Errorf("%s: the better candidate has no record", w.system.name)
	}
	better.crash()
	w.server.ResetJournal()
	from := time.Now()
	time.Sleep(5*time.Minute - time.Since(begin))
	return []float64{w.leaderless(begin), w.requests() / time.Since(from).Seconds()}
}

// deadWhenOffered kills a better candidate at the moment when another process
// offers it the lease.
func deadWhenOffered(w *world) []float64 {
	_, better, _ := w.join()
	if !w.request(5*time.Minute, func(r apitest.Request) bool { return r.User.Name != better.name && offers(r.Body, better.name) }) {
		w.t.Errorf("%s: the better candidate is not offered the lease", w.system.name)
	}
	begin := time.Now()
	better.crash()
	time.Sleep(5 * time.Minute)
	return []float64{w.leaderless(begin)}
}

// offers reports whether a written Lease offers itself to the named candidate.
func offers(body []byte, name string) bool {
	// The annotation has the ID of the offer and the identity of the candidate.
	return regexp.MustCompile(`("preferredHolder":"|/offer":"[^" ]+ )` + regexp.QuoteMeta(name)).Match(body)
}

func first(w *world) []float64 {
	w.phase()
	begin := time.Now()
	w.startApart(3)
	w.leader()
	none, _, _ := w.ledger.tally(begin, time.Now())
	return []float64{none.Seconds()}
}

func upgrade(w *world) []float64 {
	w.startApart(3)
	w.leader()
	time.Sleep(60 * time.Second)
	w.phase()
	begin := time.Now()
	for i := range 3 {
		// Like a rolling update of a Deployment: add one replica, then remove
		// one when the new replica is ready.
		w.start(&process{name: fmt.Sprintf("new%d", i), version: "1.31.0"})
		time.Sleep(10 * time.Second)
		w.process(fmt.Sprintf("c%d", i)).stop()
		time.Sleep(50 * time.Second)
	}
	leaderless := w.leaderless(begin)
	w.server.ResetJournal()
	time.Sleep(20 * time.Minute)
	return []float64{leaderless, w.requests() / (20 * 60)}
}

func steady(w *world) []float64 {
	w.startApart(5)
	w.leader()
	time.Sleep(2 * time.Minute)
	w.server.ResetJournal()
	time.Sleep(10 * time.Minute)
	return []float64{w.requests() / (10 * 60)}
}

// crowd counts watch events too, because each costs the API server and its client
// about as much as a small request.
func crowd(w *world) []float64 {
	for i := range 200 {
		w.start(&process{name: fmt.Sprintf("c%d", i)})
		time.Sleep(20 * time.Millisecond)
	}
	w.leader()
	time.Sleep(time.Minute)
	w.server.ResetJournal()
	w.events.Store(0)
	time.Sleep(2 * time.Minute)
	return []float64{(w.requests() + float64(w.events.Load())) / (2 * 60)}
}

func ties(w *world) []float64 {
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second + 100*time.Millisecond)))
	begin := time.Now()
	w.server.ResetJournal()
	for i := range 5 {
		w.start(&process{name: fmt.Sprintf("c%d", i)})
	}
	w.leader()
	time.Sleep(25 * time.Minute)
	none, _, terms := w.ledger.tally(begin, time.Now())
	elapsed := time.Since(begin).Seconds()
	return []float64{100 * none.Seconds() / elapsed, float64(terms), w.requests() / elapsed}
}

func slowClocks(w *world) []float64 {
	begin := time.Now()
	w.server.ResetJournal()
	for i := range 3 {
		w.start(&process{name: fmt.Sprintf("c%d", i), offset: -6 * time.Second})
		time.Sleep(1100 * time.Millisecond)
	}
	time.Sleep(time.Minute - time.Since(begin))
	elapsed := time.Since(begin).Seconds()
	return []float64{100 * w.leaderless(begin) / elapsed, w.requests() / elapsed}
}

func fastClock(w *world) []float64 {
	w.start(&process{name: "c0", offset: 10 * time.Minute})
	leader := w.leader()
	for i := range 2 {
		time.Sleep(1100 * time.Millisecond)
		w.start(&process{name: fmt.Sprintf("c%d", i+1)})
	}
	time.Sleep(40 * time.Second)
	w.phase()
	begin := time.Now()
	leader.crash()
	_, at, ok := w.next(leader.name, 20*time.Minute)
	return []float64{until(begin, at, ok)}
}

func partitioned(w *world) []float64 {
	w.startApart(10)
	leader := w.leader()
	time.Sleep(40 * time.Second)
	w.phase()
	begin := time.Now()
	leader.partition()
	_, at, ok := w.next(leader.name, patience)
	time.Sleep(30 * time.Second)
	return []float64{until(begin, at, ok), w.twoLeaders(begin)}
}

func deleted(w *world) []float64 {
	w.startApart(4)
	w.leader()
	time.Sleep(40 * time.Second)
	w.phase()
	begin := time.Now()
	apitest.Remove[*coordinationv1.Lease](w.server, namespace, leaseName)
	time.Sleep(time.Minute)
	return []float64{w.twoLeaders(begin)}
}
