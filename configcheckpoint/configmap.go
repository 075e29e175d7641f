// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
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
		w := &configMapWatch{source: s, api: s.client.ConfigMaps(s.namespace), yield: yield}
		for ctx.Err() == nil && !w.stopped {
			err := w.round(ctx)
			if err == nil || ctx.Err() != nil || w.stopped {
				continue
			}
			w.failed(ctx, err)
		}
	}
}

// configMapWatch is what is known of the ConfigMap during one Payloads. An
// informer would do as well but for its manners in an outage: it begins its
// backoff anew every two minutes, sends two requests each time, and does not
// tell of a connection that is lost before the first event.
type configMapWatch struct {
	source configMapSource
	api    corev1client.ConfigMapInterface
	yield  func(Payload, error) bool

	object   *corev1.ConfigMap // nil: there is none
	version  string            // to watch from; "": to be listed first
	emitted  string            // what was yielded last, as id has it
	failures int               // rounds that failed in a row
	stopped  bool              // yield returned false
}

// configMapRetry paces the rounds in an outage.
func configMapRetry() backoff.Policy {
	return backoff.Policy{Base: time.Second, Cap: time.Minute}
}

// failed yields why a round failed, and waits. The next round begins with a
// list, so that a source that may list and not watch is followed all the same,
// if late.
func (w *configMapWatch) failed(ctx context.Context, err error) {
	w.version = ""
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		if w.failures == 0 {
			w.failures++
			return // no outage: the watch had fallen behind
		}
	}
	w.failures++
	if !w.yield(Payload{}, fmt.Errorf("configcheckpoint: %s: %w", w.source, err)) {
		w.stopped = true
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(max(configMapRetry().Delay(w.failures), apierr.RetryAfter(err))):
	}
}

// round lists where that is needed, and then watches until the stream ends. It
// returns nil where the next round can follow at once.
func (w *configMapWatch) round(ctx context.Context) error {
	if w.version == "" {
		if err := w.list(ctx); err != nil {
			return err
		}
		if w.id() != w.emitted {
			w.emit()
		}
	}
	// As client-go does: long enough to cost little, spread so that a fleet
	// does not come back all at once.
	lifetime := 5*time.Minute + time.Duration(rand.Int64N(int64(5*time.Minute)))
	ctx, cancel := context.WithTimeout(ctx, lifetime+DefaultCallTimeout)
	defer cancel()
	stream, err := w.open(ctx, lifetime, cancel)
	if err != nil {
		return err
	}
	defer stream.Stop()
	// client-go hands out an empty stream where the connection is lost before
	// the answer. So the outage is over with the first event, or when the
	// stream has lasted a while.
	lasted := time.NewTimer(time.Second)
	defer lasted.Stop()
	alive := false
	for !w.stopped {
		var event watch.Event
		open := true
		select {
		case event, open = <-stream.ResultChan():
		case <-lasted.C:
		}
		if !open {
			if !alive {
				return fmt.Errorf("configcheckpoint: watch: the connection was lost: %w", io.ErrUnexpectedEOF)
			}
			return nil
		}
		if event.Type == watch.Error {
			return w.take(event) // no sign of life
		}
		alive = true
		if w.failures > 0 {
			w.failures = 0
			w.emit()
		}
		if event.Object == nil {
			continue
		}
		if err := w.take(event); err != nil {
			return err
		}
	}
	return nil
}

// list reads what there is now. It asks for the newest state: a cache that lags
// would take the node back to an older configuration.
func (w *configMapWatch) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, DefaultCallTimeout)
	defer cancel()
	list, err := w.api.List(ctx, metav1.ListOptions{FieldSelector: w.selector()})
	if err != nil {
		return fmt.Errorf("configcheckpoint: list: %w", err)
	}
	w.object = nil
	for i := range list.Items {
		if list.Items[i].Name == w.source.name {
			w.object = &list.Items[i]
		}
	}
	w.version = list.ResourceVersion
	return nil
}

// open begins a watch. The deadline for the answer is shorter than that for the
// stream; cancel ends both.
func (w *configMapWatch) open(ctx context.Context, lifetime time.Duration, cancel context.CancelFunc) (watch.Interface, error) {
	seconds := int64(lifetime / time.Second)
	deadline := time.AfterFunc(DefaultCallTimeout, cancel)
	stream, err := w.api.Watch(ctx, metav1.ListOptions{
		FieldSelector:       w.selector(),
		ResourceVersion:     w.version,
		TimeoutSeconds:      &seconds,
		AllowWatchBookmarks: true,
	})
	if !deadline.Stop() {
		if err == nil {
			stream.Stop()
		}
		err = context.DeadlineExceeded
	}
	if err != nil {
		return nil, fmt.Errorf("configcheckpoint: watch: %w", err)
	}
	return stream, nil
}

// take follows one event of the stream.
func (w *configMapWatch) take(event watch.Event) error {
	if event.Type == watch.Error {
		return fmt.Errorf("configcheckpoint: watch: %w", apierrors.FromObject(event.Object))
	}
	cm, ok := event.Object.(*corev1.ConfigMap)
	if !ok {
		return fmt.Errorf("configcheckpoint: watch: got a %T", event.Object)
	}
	w.version = cm.ResourceVersion
	if cm.Name != w.source.name {
		return nil // a bookmark
	}
	switch event.Type {
	case watch.Added, watch.Modified:
		w.object = cm
	case watch.Deleted:
		w.object = nil
	default:
		return nil
	}
	w.emit()
	return nil
}

func (w *configMapWatch) selector() string {
	return fields.OneTermEqualSelector("metadata.name", w.source.name).String()
}

// id tells one state of the object from another.
func (w *configMapWatch) id() string {
	if w.object == nil {
		return "absent"
	}
	return string(w.object.UID) + "/" + w.object.ResourceVersion
}

// emit yields what there is now.
func (w *configMapWatch) emit() {
	w.emitted = w.id()
	p, err := w.payload()
	w.stopped = w.stopped || !w.yield(p, err)
}

// payload returns the payload in the object, or why there is none.
func (w *configMapWatch) payload() (Payload, error) {
	if w.object == nil {
		return Payload{}, fmt.Errorf("%w: %s", ErrSourceNotFound, w.source)
	}
	p := Payload{Name: w.source.String(), Version: w.id()}
	if text, ok := w.object.Data[w.source.key]; ok {
		p.Data = []byte(text)
		return p, nil
	}
	if data, ok := w.object.BinaryData[w.source.key]; ok {
		p.Data = append([]byte{}, data...)
		return p, nil
	}
	return Payload{}, fmt.Errorf("%w: %s", ErrKeyNotFound, w.source)
}
