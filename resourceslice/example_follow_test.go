// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"context"
	"fmt"
	"io"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/kubewright/kubewright/resourceslice"
)

// printer is a Sink: code that finds devices can be tested without an API
// server.
type printer struct{}

func (printer) Set(id resourceslice.PoolID, p resourceslice.Pool) error {
	fmt.Printf("set %s: %d devices\n", id, len(p.Devices))
	return nil
}

func (printer) Remove(id resourceslice.PoolID) { fmt.Printf("remove %s\n", id) }

// plugin is a driver's stream of whole states, such as a ListAndWatch.
type plugin struct {
	states []map[string]resourceslice.Pool
}

func (p *plugin) Next(context.Context) (map[string]resourceslice.Pool, error) {
	if len(p.states) == 0 {
		return nil, io.EOF
	}
	next := p.states[0]
	p.states = p.states[1:]
	return next, nil
}

func ExampleFollow() {
	two := resourceslice.Pool{Devices: []resourcev1.Device{{Name: "a"}, {Name: "b"}}}
	open := func(context.Context) (resourceslice.Stream, error) {
		return &plugin{[]map[string]resourceslice.Pool{{"rack-1": two}, {}}}, nil
	}
	err := resourceslice.Follow(context.Background(), printer{}, "gpu.example.com", open, resourceslice.FollowOptions{})
	fmt.Println(err)
	// Output:
	// set gpu.example.com/rack-1: 2 devices
	// remove gpu.example.com/rack-1
	// <nil>
}
