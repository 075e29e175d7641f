// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"math/rand/v2"
	"slices"
	"time"
)

// A kind is the kind of a fault; faults.go implements it.
type kind string

// The kinds of faults, by lane.
const (
	apiKill      kind = "API server: kill -9, start"
	apiPause     kind = "API server: SIGSTOP, SIGCONT"
	apiTerminate kind = "API server: SIGTERM, start"
	etcdPause    kind = "etcd: SIGSTOP, SIGCONT"
	etcdKill     kind = "etcd: kill -9, start"

	connDrop   kind = "connections: reset"
	connHang   kind = "connections: nothing gets through"
	connStale  kind = "connections: those that are open go dead"
	connRefuse kind = "connections: reset, new ones refused"

	kubeletKill      kind = "kubelet: kill -9, start"
	kubeletPause     kind = "kubelet: SIGSTOP, SIGCONT"
	kubeletTerminate kind = "kubelet: SIGTERM, start"

	diskFull   kind = "disk: no space"
	diskInodes kind = "disk: no inodes"

	clockStep kind = "clock of kubelet and shims: step"
)

// A fault is an entry of a schedule.
type fault struct {
	Kind kind
	At   time.Duration // since the start of the run
	For  time.Duration // duration, without the time to repair it
	By   time.Duration // for a step of the clock: offset from the true time
}

// A lane is a sequence of faults. Lanes run concurrently, so that faults of
// different lanes overlap.
type lane struct {
	name             string
	kinds            []kind
	minGap, maxGap   time.Duration // between the end of a fault and the start of the next
	minHold, maxHold time.Duration
}

// instantly lists the kinds that have no duration.
var instantly = []kind{connDrop, clockStep}

// lanes returns all lanes. Filling a disk requires root, for the mount.
func lanes(disk bool) []lane {
	all := []lane{
		// On SIGTERM an API server serves its watches for a minute but accepts
		// no new connections. This fault is rare, because little else happens
		// during that minute.
		{"control plane", []kind{apiKill, apiKill, apiKill, apiKill, apiPause, apiPause, etcdPause, etcdPause, etcdPause, etcdKill, etcdKill, apiTerminate}, 8 * time.Second, 20 * time.Second, 0, 12 * time.Second},
		{"network", []kind{connDrop, connHang, connStale, connRefuse}, 5 * time.Second, 15 * time.Second, time.Second, 15 * time.Second},
		{"kubelet", []kind{kubeletKill, kubeletKill, kubeletPause, kubeletKill, kubeletTerminate}, 4 * time.Second, 18 * time.Second, 0, 10 * time.Second},
		{"clock", []kind{clockStep}, 10 * time.Second, 30 * time.Second, 0, 0},
	}
	if disk {
		all = append(all, lane{"disk", []kind{diskFull, diskFull, diskInodes}, 10 * time.Second, 25 * time.Second, 2 * time.Second, 12 * time.Second})
	}
	return all
}

// schedule returns the faults of a lane until the end of a run. The same seed
// gives the same faults.
func (l lane) schedule(seed uint64, total time.Duration) (faults []fault) {
	var salt uint64
	for _, c := range l.name {
		salt = salt*31 + uint64(c)
	}
	random := rand.New(rand.NewPCG(seed, salt))
	between := func(a, b time.Duration) time.Duration {
		return (a + time.Duration(random.Int64N(int64(b-a)+1))).Round(time.Millisecond)
	}
	var bag []kind // each kind comes as often as the lane names it
	for at := between(l.minGap/2, l.maxGap/2); at < total; at += between(l.minGap, l.maxGap) {
		if len(bag) == 0 {
			bag = slices.Clone(l.kinds)
			random.Shuffle(len(bag), func(i, j int) { bag[i], bag[j] = bag[j], bag[i] })
		}
		f := fault{Kind: bag[0], At: at}
		bag = bag[1:]
		hold := between(l.minHold, l.maxHold)
		switch {
		case f.Kind == clockStep:
			f.By = between(-maxStep, maxStep)
		case !slices.Contains(instantly, f.Kind):
			f.For = min(hold, total-at)
		}
		at += f.For
		faults = append(faults, f)
	}
	return faults
}

// maxStep is the maximum offset of the clock. If the clock were set back by
// more than an hour, the certificates of the control plane would not be valid
// yet and no client would connect, which would be another fault.
const maxStep = 45 * time.Minute
