// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/election"
)

// lead does the work: it counts until ctx is done.
func lead(ctx context.Context, c *counter, interval time.Duration, out *printer) error {
	out.printf("leading with token %d", c.term.Token())
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		count, err := c.count(ctx)
		switch {
		case err == nil:
			out.printf("counted %d", count)
		case ctx.Err() == nil:
			out.printf("not counted: %v", err) // and retried
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			// Clean up here, within Timing.Drain. Other candidates get the
			// lease only after lead has returned.
			out.printf("stopped: %v", context.Cause(ctx))
			return nil
		}
	}
}

// counter counts in a ConfigMap and never counts a number twice, even if this
// process is frozen for minutes between the check of its term and a write while
// another process leads.
type counter struct {
	client   corev1client.ConfigMapInterface
	name, by string
	term     election.Term
}

// The keys of the ConfigMap.
const (
	countKey = "count"
	tokenKey = "token" // the token of the term in which count was written
	byKey    = "by"
)

// errNotLeading means that the term has ended or may have ended.
var errNotLeading = errors.New("the term is not assured")

// fencedError means that a later leader has written the ConfigMap.
type fencedError struct{ mine, later uint64 }

func (e *fencedError) Error() string {
	return fmt.Sprintf("token %d is fenced off by %d", e.mine, e.later)
}

// count adds one. Three guards protect it: no request starts outside the term,
// the program does not wait for a request after the term's end, and the API
// server rejects a request that arrives late, because a later leader has
// written its token and thereby changed the resourceVersion.
func (c *counter) count(ctx context.Context) (int, error) {
	if !c.term.Valid() {
		return 0, errNotLeading
	}
	ctx, cancel := context.WithDeadlineCause(ctx, c.term.Deadline(), errNotLeading)
	defer cancel()
	cm, err := c.client.Get(ctx, c.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		cm = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: c.name}, Data: map[string]string{}}
		n := c.fill(cm, 0)
		_, err = c.client.Create(ctx, cm, metav1.CreateOptions{})
		return n, err
	}
	if err != nil {
		return 0, err
	}
	// An invalid number counts as 0, because no leader has written it.
	n, _ := strconv.Atoi(cm.Data[countKey])
	later, _ := strconv.ParseUint(cm.Data[tokenKey], 10, 64)
	if later > c.term.Token() {
		return 0, &fencedError{c.term.Token(), later}
	}
	n = c.fill(cm, n)
	_, err = c.client.Update(ctx, cm, metav1.UpdateOptions{})
	return n, err
}

// fill writes the number after n.
func (c *counter) fill(cm *corev1.ConfigMap, n int) int {
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	cm.Data[countKey] = strconv.Itoa(n + 1)
	cm.Data[tokenKey] = strconv.FormatUint(c.term.Token(), 10)
	cm.Data[byKey] = c.by
	return n + 1
}
