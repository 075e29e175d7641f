// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import "sync"

// Ready has the methods of client-go's cache.DoneChecker. Its channel closes at the first
// call of Mark. Create it with NewReady, in New of a controller: a channel belongs to
// the synctest bubble that creates it.
type Ready struct {
	name string
	once sync.Once
	done chan struct{}
}

// NewReady returns a Ready that is not marked. cache.WaitFor prints the name
// while it waits.
func NewReady(name string) *Ready {
	return &Ready{name: name, done: make(chan struct{})}
}

// Name returns the name given to NewReady.
func (r *Ready) Name() string { return r.name }

// Done returns the channel.
func (r *Ready) Done() <-chan struct{} { return r.done }

// Mark closes the channel. Later calls do nothing.
func (r *Ready) Mark() { r.once.Do(func() { close(r.done) }) }
