// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// Settings is the configuration of the agent.
type Settings struct {
	// Greeting is the text that the agent prints.
	Greeting string `json:"greeting"`
	// BufferMiB is the amount of memory that the agent reserves. Validation
	// cannot know the machine's memory: too much ends the process.
	BufferMiB int `json:"bufferMiB,omitempty"`
	// Upstream is a host:port that the agent must be able to reach; empty for
	// none. A valid address may still be unreachable.
	Upstream string `json:"upstream,omitempty"`
}

// decode rejects unknown keys, so that a misspelt key is an error and not a
// default.
func decode(data []byte) (s Settings, err error) {
	return s, yaml.UnmarshalStrict(data, &s)
}

func (s Settings) validate() error {
	var problems []error
	if s.Greeting == "" {
		problems = append(problems, errors.New("greeting is required"))
	}
	if s.BufferMiB < 0 {
		problems = append(problems, errors.New("bufferMiB must not be negative"))
	}
	if s.Upstream != "" {
		if _, _, err := net.SplitHostPort(s.Upstream); err != nil {
			problems = append(problems, fmt.Errorf("upstream: %w", err))
		}
	}
	return errors.Join(problems...)
}

// work is the purpose of the agent.
type work struct {
	stdout   io.Writer
	upstream atomic.Pointer[string]
}

// run works with s until ctx is done.
func (w *work) run(ctx context.Context, s Settings) error {
	buffer := make([]byte, s.BufferMiB<<20)
	w.upstream.Store(&s.Upstream)
	fmt.Fprintf(w.stdout, "%s, with a buffer of %d MiB\n", s.Greeting, len(buffer)>>20)
	<-ctx.Done()
	return nil
}

// health returns an error if the work is not being done.
func (w *work) health(ctx context.Context) error {
	upstream := w.upstream.Load()
	if upstream == nil {
		return errors.New("the agent has not started")
	}
	if *upstream == "" {
		return nil
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", *upstream)
	if err != nil {
		return err
	}
	return conn.Close()
}
