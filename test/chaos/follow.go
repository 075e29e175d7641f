// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// A sink receives the events of a watch. It is called from one goroutine.
type sink interface {
	// replace is called with all objects at the revision now, and with the
	// revision up to which the sink has seen all events: "" at first.
	replace(ctx context.Context, objects []runtime.Object, since, now string)
	change(kind watch.EventType, object runtime.Object)
}

// pause is the delay after an API server error.
const pause = 200 * time.Millisecond

// callTimeout bounds a call by the checker or the churn, because the API server
// may hang.
const callTimeout = 5 * time.Second

// follow lists and watches until ctx is done. Unlike a reflector, it reports
// the revisions between which it missed events, so that the sink can look up
// the objects deleted in between.
func follow(ctx context.Context, lw *cache.ListWatch, to sink) {
	var since, revision string
	for ctx.Err() == nil {
		if revision == "" {
			objects, now, err := listAll(ctx, lw, metav1.ListOptions{})
			if err != nil {
				sleep(ctx, pause)
				continue
			}
			to.replace(ctx, objects, since, now)
			revision = now
		}
		next, err := follow1(ctx, lw, to, revision)
		revision = next
		if lost(err) {
			since, revision = next, ""
			continue
		}
		sleep(ctx, pause)
	}
}

// follow1 watches once. It returns the revision up to which the sink has seen
// all events.
func follow1(ctx context.Context, lw *cache.ListWatch, to sink, revision string) (string, error) {
	w, err := lw.WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: revision, AllowWatchBookmarks: true})
	if err != nil {
		return revision, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return revision, apierrors.FromObject(event.Object)
		}
		object, err := meta.Accessor(event.Object)
		if err != nil {
			return revision, err
		}
		revision = object.GetResourceVersion()
		if event.Type != watch.Bookmark {
			to.change(event.Type, event.Object)
		}
	}
	return revision, nil
}

// lost reports whether err means that the API server has discarded the
// requested revision.
func lost(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

func listAll(ctx context.Context, lw *cache.ListWatch, options metav1.ListOptions) ([]runtime.Object, string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := lw.ListWithContext(ctx, options)
	if err != nil {
		return nil, "", err
	}
	objects, err := meta.ExtractList(list)
	if err != nil {
		return nil, "", err
	}
	l, err := meta.ListAccessor(list)
	if err != nil {
		return nil, "", err
	}
	return objects, l.GetResourceVersion(), nil
}

// sleep waits for d or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
