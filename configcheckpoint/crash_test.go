// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore/slottest"
	"github.com/kubewright/kubewright/internal/durable/crashfs"
)

const testAttempts = 2

// machine is one node: a disk, and the process on it if one runs. It records
// the acknowledged state, to check the next process.
type machine struct {
	fs *slottest.Disk
	c  *Controller[string]
	l  *loop[string]

	active   Active[string]
	last     string         // delivered last
	starts   map[string]int // on trial, since it was staged
	promoted map[Digest]bool
}

func newMachine(disk *slottest.Disk) *machine {
	return &machine{fs: disk, starts: map[string]int{}, promoted: map[Digest]bool{}}
}

// on returns the same node with another disk, and no process.
func (m *machine) on(disk *slottest.Disk) *machine {
	return &machine{fs: disk, last: m.last, starts: maps.Clone(m.starts), promoted: maps.Clone(m.promoted)}
}

func testCodec() Codec[string] {
	return Codec[string]{
		Decode: func(data []byte) (string, error) {
			if bytes.HasPrefix(data, []byte("bad")) {
				return "", errors.New("bad from the start")
			}
			return string(data), nil
		},
		Default: func() (string, error) { return "default", nil },
	}
}

// boot starts a process.
func (m *machine) boot() error {
	if m.fs.Crashed {
		m.fs.AfterCrash(slotstore.Config{Parse: describe, Empty: []byte(`{"schema":1,"minReader":1,"gen":0}`), MaxPayload: MaxPayloadSize})
	}
	c, err := New(Config[string]{
		Dir: "/crashfs", Codec: testCodec(), Build: "test",
		Source:       make(feed),
		Trial:        Trial{Attempts: testAttempts},
		ErrorHandler: func(context.Context, error, string) {},
	})
	if err != nil {
		return err
	}
	c.store, c.bootID = storeOn(m.fs), func() string { return "boot" }
	m.c = c
	m.l = newLoop(c)
	m.fs.Opening = true
	c.mu.Lock()
	c.life = booting
	_, err = c.openStore()
	c.mu.Unlock()
	m.fs.Opening = false
	if errors.Is(err, ErrLocked) || errors.Is(err, ErrPermissions) {
		return err
	}
	found, err := c.choose(context.Background())
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.activate(found)
	c.life = booted
	c.refresh()
	m.active = found.active
	if found.active.Trial {
		m.starts[found.active.Config]++
	}
	return nil
}

// deliver lets the source yield a payload; "" unassigns.
func (m *machine) deliver(text string) error {
	var data []byte
	if text != "" {
		data = []byte(text)
	}
	if a := m.c.core.Record().Assigned; a == nil || refOf(a).Digest != DigestOf(data) {
		delete(m.starts, text)
	}
	m.last = text
	m.l.payload = &Payload{Data: data, Unassign: data == nil, Name: "test", Version: "1"}
	m.l.retryStore()
	m.l.deliver(context.Background())
	if s := m.c.state.store; s != nil {
		return s
	}
	if s := m.c.state.refused; s.transient() {
		return s
	}
	return nil
}

func (m *machine) verdict(failure error) error {
	if failure == nil {
		m.promoted[m.active.Ref.Digest] = true
	}
	err := m.c.Verdict(failure)
	if errors.Is(err, ErrNoTrial) {
		return nil
	}
	return err
}

func (m *machine) closeClean() error {
	if m.active.Trial {
		m.starts[m.active.Config]--
	}
	return m.c.Close(nil)
}

// step is one event in the life of a machine.
type step struct {
	name string
	do   func(*machine) error
}

func boot() step { return step{"boot", (*machine).boot} }
func deliver(text string) step {
	return step{"deliver " + text, func(m *machine) error { return m.deliver(text) }}
}
func promoteNow() step {
	return step{"promote", func(m *machine) error { return m.verdict(nil) }}
}
func fail() step {
	return step{"fail", func(m *machine) error { return m.verdict(errors.New("ill")) }}
}
func closeCleanly() step { return step{"close", (*machine).closeClean} }

// crashLife has every kind of change, and every change after each other one that
// matters to it.
func crashLife() []step {
	return []step{
		boot(), deliver("A"), // an empty disk, the first configuration
		boot(), promoteNow(),
		deliver("B"), boot(), boot(), boot(), // a crash loop: back on A
		deliver("C"), boot(), fail(), boot(), // rolled back by a verdict
		deliver("bad"), // rejected at the door
		deliver("D"), boot(), closeCleanly(),
		boot(), promoteNow(), // the second promotion: A is previous
		deliver("E"), deliver("D"), // a newer one, and back to the good one
		deliver("F"), boot(), promoteNow(), // the third: A's payload goes
		deliver(""), boot(), // unassigned
		deliver("A"), boot(), promoteNow(),
	}
}

// run performs steps until the disk crashes, and returns the step it was in, or
// "".
func (m *machine) run(steps []step) (where string, err error) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(crashfs.Crashed); !ok {
				panic(p)
			}
		}
	}()
	for i, s := range steps {
		where = fmt.Sprintf("step %d (%s)", i, s.name)
		if err := s.do(m); err != nil {
			return where, fmt.Errorf("%s: %w", where, err)
		}
	}
	return "", nil
}
