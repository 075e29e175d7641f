// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"context"
	"fmt"
	"time"

	"github.com/kubewright/kubewright/apitest"
)

// Defaults of Config.
const (
	DefaultSettle   = 2 * time.Minute
	DefaultDeadline = 10 * time.Minute
	DefaultRate     = 5
)

// Config selects the faults and limits of an exploration. The zero value tries every
// fault of Faults once at each of its places.
type Config struct {
	// Options configure the API server of each run.
	Options apitest.Options
	// Faults are the faults that are tried. Nil means those of Faults.
	Faults []Fault
	// Ignore names fields that may differ at the end: a kind and a path, such as
	// "Pod.status.message" or "Node.metadata.annotations.example.com/seen". The kind *
	// stands for every kind. If a field is a list, the rest of the path is a field of its
	// elements: "Pod.status.conditions.reason". A kind without a path, such as
	// "LeaseCandidate", ignores all of its objects, for example because programs choose
	// their names at random.
	Ignore []string
	// Once names what a program creates once and for another object: a kind, such as the Job
	// of a CronJob, or an object, such as "ReplicaSet default/web-1". If another client deletes
	// such an object at rest, it need not come back.
	Once []string
	// Sample is the largest number of plans with one fault: as many for each fault, selected
	// evenly from its plans, and more for the others if a fault has fewer. 0 means all plans.
	Sample int
	// Budget is the real time for plans with two faults, which are run after those with
	// one. Pairs is the largest number of plans with two faults. If both are set, the
	// exploration ends when one of the limits is reached. If both are 0, there are no plans
	// with two faults.
	Budget time.Duration
	Pairs  int
	// Seed selects the plans with two faults. With the same Seed and Pairs, and no
	// Budget, the same plans run. 0 means a random seed, which is printed.
	Seed uint64
	// Settle is the virtual time between the last step or fault and the comparison.
	// 0 means DefaultSettle.
	Settle time.Duration
	// Deadline is the virtual time within which each step must be reached, the objects at
	// the end must be those of the reference, and a program must return. Each of these has
	// the full time, and a fault extends it. 0 means DefaultDeadline.
	Deadline time.Duration
	// Rate limits the requests an hour. More than Rate times those of the reference are a
	// finding; the requests of a restart are not counted. 0 means DefaultRate.
	Rate float64
	// Refused makes an answer with 403 a finding if the reference has no such answer.
	Refused bool
	// InProcess runs all plans in this process, for a debugger and for coverage. If a
	// goroutine of a program panics, the test ends, and the plan is not printed.
	InProcess bool
}

func (c Config) withDefaults() Config {
	if c.Faults == nil {
		c.Faults = Faults()
	}
	if c.Settle == 0 {
		c.Settle = DefaultSettle
	}
	if c.Deadline == 0 {
		c.Deadline = DefaultDeadline
	}
	if c.Rate == 0 {
		c.Rate = DefaultRate
	}
	return c
}

// pairs reports whether there are plans with two faults.
func (c Config) pairs() bool { return c.Budget > 0 || c.Pairs > 0 }

// Scenario has the parts of a run. It belongs to one World: the function that returns it
// is called in the bubble of each run, and makes everything that the run needs.
type Scenario struct {
	// Programs run from the beginning to the end. Required.
	Programs []Program
	// Steps are the actions of other clients, one after the other.
	Steps []Step
	// Always has invariants. They are checked after every change of an object, after
	// every Process.Call, and while the exploration waits for a step. Their functions must
	// not write to the server or wait. They are called by several goroutines, one call at
	// a time.
	Always []Invariant
	// Outside has the systems outside of the API in which programs keep things.
	Outside []Outside
	// Finally, if set, is called at the end, in addition to the comparison with the
	// reference. While it returns an error, it is called again until Config.Deadline. It
	// is not called after a fault with World.
	Finally func() error
}

// Outside is a system outside of the API, such as a container runtime or a cloud. What is in
// it is compared at the end, as objects are: a thing that is left, or missing, is a finding.
type Outside struct {
	// Name is in plan lines. Required.
	Name string
	// List returns the names of the things that exist. They must be the same in each run, so
	// they can't be random. Required.
	List func() []string
	// Rest returns the things that are at rest, such as exited containers. An administrator
	// deletes each of them, after each step, with Delete. It need not come back, but all else
	// must be as in the reference. If one of the functions is nil, there is no such fault.
	Rest   func() []string
	Delete func(name string)
	// Retain is for things that stay when an object is deleted whose name they contain, such as
	// volumes that are kept. If it is false, such a thing is a finding.
	Retain bool
}

// Invariant is something that must be true at all times.
type Invariant struct {
	Name  string
	Holds func() error // nil if it is true, or an error with the reason
}

// Program is a program under test, such as a controller or a whole manager.
type Program struct {
	// Name is in plan lines and journals. Required, and unique in a scenario. It must
	// not contain ": ", "@", "+" or "#".
	Name string
	// User is the identity of the requests. The zero User is an administrator.
	User apitest.User
	// Undisturbed is for programs that simulate other components, such as a kubelet that
	// reports pods as ready. Their requests have no faults and do not count for
	// Config.Rate.
	Undisturbed bool
	// Run runs the program until ctx is done. It is called again after a crash, and
	// after it returned. Required.
	Run func(ctx context.Context, p *Process) error
}

// Step is one action of another client.
type Step struct {
	// Name is in plan lines and journals.
	Name string
	// Do acts. Nil does nothing.
	Do func() error
	// Until reports whether the step has had its effect. It must not write. It should ask
	// for everything that holds then, because faults are found by steps that are not reached.
	// Nil does not wait.
	Until func() bool
}

func (s *Scenario) validate() error {
	if len(s.Programs) == 0 {
		return fmt.Errorf("explore: invalid scenario: no Programs")
	}
	names := map[string]bool{}
	for _, p := range s.Programs {
		switch {
		case p.Name == "" || p.Name != clean(p.Name):
			return fmt.Errorf("explore: invalid scenario: program name %q", p.Name)
		case names[p.Name]:
			return fmt.Errorf("explore: invalid scenario: two programs %q", p.Name)
		case p.Run == nil:
			return fmt.Errorf("explore: invalid scenario: program %q has no Run", p.Name)
		}
		names[p.Name] = true
	}
	for _, o := range s.Outside {
		if o.Name == "" || o.Name != clean(o.Name) || o.List == nil {
			return fmt.Errorf("explore: invalid scenario: Outside %q needs a Name and List", o.Name)
		}
	}
	return nil
}
