// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
)

// ConfigMap returns a Source that watches one key of one ConfigMap, in Data or
// BinaryData. It lists and watches with the field selector metadata.name, so
// the permission to do so may be limited to that one name.
//
// A ConfigMap that does not exist is ErrSourceNotFound, and a key that does not
// is ErrKeyNotFound; neither is ever taken for "nothing assigned". The error
// names every part of the reference that is not valid.
func ConfigMap(client corev1client.ConfigMapsGetter, namespace, name, key string) (Source, error) {
	var problems []error
	wrong := func(what, value string, reasons []string) {
		if len(reasons) > 0 {
			problems = append(problems, fmt.Errorf("%s %q: %s", what, value, strings.Join(reasons, "; ")))
		}
	}
	if client == nil {
		problems = append(problems, errors.New("the client is nil"))
	}
	wrong("namespace", namespace, validation.IsDNS1123Label(namespace))
	wrong("name", name, validation.IsDNS1123Subdomain(name))
	wrong("key", key, validation.IsConfigMapKey(key))
	if len(problems) > 0 {
		return nil, fmt.Errorf("configcheckpoint: source ConfigMap: %w", errors.Join(problems...))
	}
	return configMapSource{client: client, namespace: namespace, name: name, key: key}, nil
}

type configMapSource struct {
	client               corev1client.ConfigMapsGetter
	namespace, name, key string
}

// String returns what payloads are called.
func (s configMapSource) String() string {
	return fmt.Sprintf("ConfigMap %s/%s[%s]", s.namespace, s.name, s.key)
}

// Payloads implements Source.
func (s configMapSource) Payloads(ctx context.Context) iter.Seq2[Payload, error] {
	return func(yield func(Payload, error) bool) {
		w := &configMapWatch{source: s, changed: make(chan struct{}, 1)}
		informer := cache.NewSharedIndexInformerWithOptions(w.listWatch(), &corev1.ConfigMap{}, cache.SharedIndexInformerOptions{})
		handler, err := w.attach(informer)
		if err != nil {
			yield(Payload{}, fmt.Errorf("configcheckpoint: %s: %w", s, err))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() { informer.RunWithContext(ctx) })
		synced := handler.HasSyncedChecker().Done()
		for {
			select {
			case <-ctx.Done():
				return
			case <-synced:
				synced = nil
				w.sync()
			case <-w.changed:
			}
			if p, known, err := w.take(); known && !yield(p, err) {
				return
			}
		}
	}
}

// configMapWatch is what is known of the ConfigMap during one Payloads.
type configMapWatch struct {
	source  configMapSource
	changed chan struct{}

	mu     sync.Mutex
	synced bool
	object *corev1.ConfigMap // belongs to the informer, never written to
	err    error             // of the last request
}

// set changes w and has it looked at.
func (w *configMapWatch) set(change func()) {
	w.mu.Lock()
	change()
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// sync says that the first list has been dealt with.
func (w *configMapWatch) sync() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.synced = true
}

// attach connects w to the informer.
func (w *configMapWatch) attach(informer cache.SharedIndexInformer) (cache.ResourceEventHandlerRegistration, error) {
	// Errors are seen where the requests are made. The default would hand them
	// to a limiter that all of the process shares.
	err := informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {})
	if err != nil {
		return nil, err
	}
	err = informer.SetTransform(func(obj any) (any, error) {
		if cm, ok := obj.(*corev1.ConfigMap); ok {
			cm.ManagedFields = nil // never read, and often larger than the rest
		}
		return obj, nil
	})
	if err != nil {
		return nil, err
	}
	keep := func(obj any) {
		if cm, ok := obj.(*corev1.ConfigMap); ok && cm.Name == w.source.name {
			w.set(func() { w.object = cm })
		}
	}
	return informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    keep,
		UpdateFunc: func(_, obj any) { keep(obj) },
		DeleteFunc: func(any) { w.set(func() { w.object = nil }) },
	})
}

// take returns the payload or the error to yield, and whether there is one.
func (w *configMapWatch) take() (p Payload, known bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil:
		return Payload{}, true, fmt.Errorf("configcheckpoint: %s: %w", w.source, w.err)
	case !w.synced:
		return Payload{}, false, nil
	case w.object == nil:
		return Payload{}, true, fmt.Errorf("%w: %s", ErrSourceNotFound, w.source)
	}
	p = Payload{Name: w.source.String(), Version: string(w.object.UID) + "/" + w.object.ResourceVersion}
	if text, ok := w.object.Data[w.source.key]; ok {
		p.Data = []byte(text)
		return p, true, nil
	}
	if data, ok := w.object.BinaryData[w.source.key]; ok {
		p.Data = append([]byte{}, data...)
		return p, true, nil
	}
	return Payload{}, true, fmt.Errorf("%w: %s", ErrKeyNotFound, w.source)
}

// listWatch makes the requests, each with a deadline for its answer.
func (w *configMapWatch) listWatch() *cache.ListWatch {
	api := w.source.client.ConfigMaps(w.source.namespace)
	selector := fields.OneTermEqualSelector("metadata.name", w.source.name).String()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeout(ctx, DefaultCallTimeout)
			defer cancel()
			opts.FieldSelector = selector
			list, err := api.List(ctx, opts)
			w.answered(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			// The deadline is for the beginning of the stream only. The server
			// ends the stream after opts.TimeoutSeconds.
			ctx, cancel := context.WithCancel(ctx)
			deadline := time.AfterFunc(DefaultCallTimeout, cancel)
			opts.FieldSelector = selector
			stream, err := api.Watch(ctx, opts)
			if !deadline.Stop() {
				if err == nil {
					stream.Stop()
				}
				err = context.DeadlineExceeded
			}
			if err != nil {
				cancel()
				if opts.SendInitialEvents == nil || !apierrors.IsInvalid(err) {
					w.answered(err)
				} // else an old server: the reflector lists instead
				return nil, err
			}
			w.answered(nil)
			return cancelOnStop{stream, cancel}, nil
		},
	}
}

// answered notes how a request ended. What an expired resourceVersion leads to
// is a list, whose answer counts.
func (w *configMapWatch) answered(err error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || errors.Is(err, context.Canceled) {
		return
	}
	w.mu.Lock()
	same := err == nil && w.err == nil
	w.mu.Unlock()
	if !same {
		w.set(func() { w.err = err })
	}
}

// cancelOnStop ends the context of a stream with the stream.
type cancelOnStop struct {
	watch.Interface
	cancel context.CancelFunc
}

func (c cancelOnStop) Stop() {
	c.Interface.Stop()
	c.cancel()
}
