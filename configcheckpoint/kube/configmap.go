// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
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

	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/listwatch"
)

// ErrKeyNotFound is wrapped by the error that the source yields if the ConfigMap has no such
// key.
var ErrKeyNotFound = errors.New("configcheckpoint: the ConfigMap has no such key")

// callTimeout is the deadline of a list, and of the answer to a watch.
const callTimeout = 30 * time.Second

// ConfigMap returns a Source that watches one key of one ConfigMap, in Data or
// BinaryData. It lists and watches with the field selector metadata.name, so
// the permission to do so may be limited to that one name.
//
// If the ConfigMap does not exist the source yields configcheckpoint.ErrSourceNotFound, and
// if the key does not, ErrKeyNotFound; neither unassigns. The error of ConfigMap
// names every part of the reference that is not valid.
func ConfigMap(client corev1client.ConfigMapsGetter, namespace, name, key string) (configcheckpoint.Source, error) {
	var problems []error
	wrong := func(what, value string, reasons []string) {
		if len(reasons) > 0 {
			problems = append(problems, fmt.Errorf("%s %q: %s", what, value, strings.Join(reasons, "; ")))
		}
	}
	if lifecycle.IsNil(client) {
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

// String returns the Name of the payloads.
func (s configMapSource) String() string {
	return fmt.Sprintf("ConfigMap %s/%s[%s]", s.namespace, s.name, s.key)
}

// configMapRetry is the delay after rounds in a row that failed.
func configMapRetry() backoff.Policy {
	return backoff.Policy{Base: time.Second, Cap: time.Minute}
}

// aliveAfter is the time without an event after which a stream is alive. client-go
// returns an empty stream if the connection is lost before the answer.
const aliveAfter = time.Second

// Payloads implements Source.
func (s configMapSource) Payloads(ctx context.Context) iter.Seq2[configcheckpoint.Payload, error] {
	return func(yield func(configcheckpoint.Payload, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		w := &configMapWatch{source: s, ctx: ctx, out: make(chan delivery), done: make(chan struct{})}
		go w.run()
		defer func() {
			cancel()
			<-w.done
		}()
		for {
			select {
			case d := <-w.out:
				if !yield(d.payload, d.err) {
					return
				}
			case <-w.done:
				return
			}
		}
	}
}

// A delivery is a payload or an error of the source.
type delivery struct {
	payload configcheckpoint.Payload
	err     error
}

// configMapWatch keeps the ConfigMap of one call of Payloads up to date. It is the
// store of a Reflector, and belongs to the goroutine of run.
type configMapWatch struct {
	source configMapSource
	ctx    context.Context
	out    chan delivery
	done   chan struct{} // closed when run has returned

	object  *corev1.ConfigMap // nil: it does not exist
	emitted string            // the id of the last payload that was sent
	failing bool              // an error was sent after it
	// expired means that the version to watch from was gone since the last watch
	// that started. Once is in the order of things.
	expired bool
	alive   bool // a watch has started in this round
}

// run lists and watches, until ctx is done. The pace of an outage is that of
// configMapRetry: a Reflector's own begins again every two minutes.
func (w *configMapWatch) run() {
	defer close(w.done)
	api := w.source.client.ConfigMaps(w.source.namespace)
	reflector := cache.NewReflectorWithOptions(noWatchList{listwatch.New(listwatch.Config{
		List: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			// The newest state: an API server that lags behind would take the node
			// back to an older configuration.
			opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
			return api.List(ctx, opts)
		},
		Watch: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			stream, err := api.Watch(ctx, opts)
			if err == nil {
				err = w.started(ctx, stream)
			}
			return stream, err
		},
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, w.source.name).String(),
		ListTimeout:   callTimeout,
		AnswerTimeout: callTimeout,
		Retries:       backoff.Policy{Base: time.Second, Cap: 30 * time.Second},
		Outcome: func(_ context.Context, err error) time.Duration {
			if first := isExpired(err) && !w.expired; err != nil && !first {
				w.failing = true
				w.hand(delivery{err: fmt.Errorf("configcheckpoint: %s: %w", w.source, apierr.Permission(err, "configcheckpoint.yaml"))})
			}
			w.expired = w.expired || isExpired(err)
			return 0
		},
	})}, &corev1.ConfigMap{}, w, cache.ReflectorOptions{Name: w.source.String()})
	for failures := 0; w.ctx.Err() == nil; {
		w.alive = false
		err := reflector.ListAndWatchWithContext(w.ctx) // Outcome has reported err
		if w.alive {
			failures = 0
		}
		failures++
		select {
		case <-w.ctx.Done():
		case <-time.After(max(configMapRetry().Delay(failures), apierr.RetryAfter(err))):
		}
	}
}

// started waits for the first event of a stream, or until the stream is alive
// without one, and returns an error if the stream ends or begins with an error.
// The event is applied here; a Reflector that sees it again changes nothing.
func (w *configMapWatch) started(ctx context.Context, stream watch.Interface) error {
	var event watch.Event
	open := true
	timer := time.NewTimer(aliveAfter)
	defer timer.Stop()
	select {
	case event, open = <-stream.ResultChan():
	case <-timer.C:
	case <-ctx.Done():
		return nil
	}
	switch {
	case !open:
		return fmt.Errorf("watch: the connection was lost: %w", io.ErrUnexpectedEOF)
	case event.Type == watch.Error:
		stream.Stop()
		return fmt.Errorf("watch: %w", apierrors.FromObject(event.Object))
	}
	w.alive, w.expired = true, false
	cm, ok := w.ours(event.Object)
	switch {
	case ok && (event.Type == watch.Added || event.Type == watch.Modified):
		w.object = cm
	case ok && event.Type == watch.Deleted:
		w.object = nil
	}
	if w.failing || w.id() != w.emitted {
		w.send()
	}
	return nil
}

// isExpired reports whether the version to watch from is gone.
func isExpired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// noWatchList makes a Reflector list and then watch: a list of one object costs
// less than finding out whether the server can stream it.
type noWatchList struct{ *listwatch.Source }

// IsWatchListSemanticsUnSupported is the method that Reflectors look for.
func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }

// Replace implements cache.ReflectorStore. It has the result of a list.
func (w *configMapWatch) Replace(objects []any, _ string) error {
	w.object = nil
	for _, obj := range objects {
		if cm, ok := w.ours(obj); ok {
			w.object = cm
		}
	}
	if w.id() != w.emitted {
		w.send()
	}
	return nil
}

// Add implements cache.ReflectorStore.
func (w *configMapWatch) Add(obj any) error { return w.Update(obj) }

// Update implements cache.ReflectorStore.
func (w *configMapWatch) Update(obj any) error {
	if _, ok := w.ours(obj); !ok {
		return nil
	}
	return w.Replace([]any{obj}, "")
}

// Delete implements cache.ReflectorStore.
func (w *configMapWatch) Delete(obj any) error {
	if _, ok := w.ours(obj); !ok {
		return nil
	}
	return w.Replace(nil, "")
}

// ours returns obj if it is the ConfigMap of the source. A server or proxy may ignore the
// field selector, as the fake clientset of client-go does.
func (w *configMapWatch) ours(obj any) (*corev1.ConfigMap, bool) {
	cm, ok := obj.(*corev1.ConfigMap)
	return cm, ok && cm.Name == w.source.name && cm.Namespace == w.source.namespace
}

// Resync implements cache.ReflectorStore.
func (w *configMapWatch) Resync() error { return nil }

// id identifies a state of the object.
func (w *configMapWatch) id() string {
	if w.object == nil {
		return "absent"
	}
	return string(w.object.UID) + "/" + w.object.ResourceVersion
}

// send yields the payload in the object, or why there is none.
func (w *configMapWatch) send() {
	w.emitted, w.failing = w.id(), false
	p, err := w.payload()
	w.hand(delivery{p, err})
}

// hand passes d to the iterator.
func (w *configMapWatch) hand(d delivery) {
	select {
	case w.out <- d:
	case <-w.ctx.Done():
	}
}

// payload returns the payload in the object, or why there is none.
func (w *configMapWatch) payload() (configcheckpoint.Payload, error) {
	if w.object == nil {
		return configcheckpoint.Payload{}, fmt.Errorf("%w: %s", configcheckpoint.ErrSourceNotFound, w.source)
	}
	p := configcheckpoint.Payload{Name: w.source.String(), Version: w.id()}
	if text, ok := w.object.Data[w.source.key]; ok {
		p.Data = []byte(text)
		return p, nil
	}
	if data, ok := w.object.BinaryData[w.source.key]; ok {
		p.Data = append([]byte{}, data...)
		return p, nil
	}
	return configcheckpoint.Payload{}, fmt.Errorf("%w: %s", ErrKeyNotFound, w.source)
}
