// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
	"weak"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A Memory holds the objects and tokens that the containers and volumes of one pod have
// read, so that they can be resolved again while the API server can't be reached; see
// [Resolver.Recall]. The zero value is empty. It is safe for concurrent use.
type Memory struct {
	mu      sync.Mutex
	held    map[objectKey]*held
	version int
}

// held is an object that Memories share. It never changes.
type held struct{ object any } // nil: the API server said that there is none

// A keptToken is the object of a token in a Memory.
type keptToken struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
	Renew   time.Time `json:"renew,omitzero"`
	// Made is when Renew was computed, and Asked is the life that the pod asked for. Both say
	// whether Renew still holds; see isDue.
	Made  time.Time     `json:"made,omitzero"`
	Asked time.Duration `json:"asked,omitempty"`
}

// isDue reports whether the token must be made again, by the wall clock. Renew alone does not say
// so: a clock that was ahead when the token was made may have been set right since. A clock before
// Made makes it due. Later it is due when a fifth of its life is left by the present clock.
func (k *keptToken) isDue(now time.Time) bool {
	now = now.Round(0) // a monotonic clock stops while the machine is suspended
	last := k.Expires.Add(-max(min(k.Expires.Sub(k.Made), k.Asked), 0) / 5)
	return now.Before(k.Made) || !now.Before(k.Renew) || !now.Before(last)
}

// A keptCertificate is the object of a certificate in a Memory. It is never on disk, because
// its key may be valid for months.
type keptCertificate struct {
	key, chain     []byte
	expires, renew time.Time
	made           time.Time // by the clock of this machine
}

// isDue reports whether the certificate must be made again, by the wall clock. The signer has
// chosen renew, but a clock that has been set back since may be wrong about it.
func (k *keptCertificate) isDue(now time.Time) bool {
	now = now.Round(0)
	return now.Before(k.made) || !now.Before(k.renew)
}

// A Sealer encrypts Secrets and tokens for the disk with a key that is not on it, such as
// that of a TPM or of a key ring. Its methods may be called concurrently.
type Sealer interface {
	// Seal encrypts and authenticates data.
	Seal(data []byte) ([]byte, error)
	// Open returns the data that Seal was called with.
	Open(sealed []byte) ([]byte, error)
}

// Version returns a number that grows when the content of m changes.
func (m *Memory) Version() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.version
}

// recall returns what the API server said last about an object.
func (m *Memory) recall(key objectKey) (*held, bool) {
	if m == nil {
		return nil, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ok := m.held[key]
	return h, ok
}

func (m *Memory) keep(key objectKey, h *held) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, ok := m.held[key]; ok && (old == h || old.object == nil && h.object == nil) {
		return
	}
	if m.held == nil {
		m.held = map[objectKey]*held{}
	}
	m.held[key] = h
	m.version++
}

// unreachable reports whether an error of a request says that the API server can't be
// reached, or can't answer. A request that it denies or whose object it does not have was
// answered, but not if a proxy says so, and one that the caller has canceled tells nothing.
func unreachable(ctx context.Context, err error) bool {
	answered := (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)) && !apierrors.IsUnexpectedServerError(err)
	return err != nil && ctx.Err() == nil && !answered
}

// A shelf finds equal objects that Memories hold, so that a ConfigMap of a hundred pods is
// in memory once. It keeps none of them.
type shelf struct {
	mu   sync.Mutex
	held map[objectKey]shelved
}

type shelved struct {
	weak.Pointer[held]
	read time.Time // before the last request for it began; zero: in an earlier process
}

// share returns the held object for obj: that of another Memory if it is the same version.
func (s *shelf) share(key objectKey, obj any, read time.Time) *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.held[key]
	if h := old.Value(); h != nil && sameVersion(h.object, obj) {
		if read.After(old.read) {
			s.held[key] = shelved{old.Pointer, read}
		}
		return h
	}
	maps.DeleteFunc(s.held, func(_ objectKey, p shelved) bool { return p.Value() == nil })
	if s.held == nil {
		s.held = map[objectKey]shelved{}
	}
	h := &held{obj}
	s.held[key] = shelved{weak.Make(h), read}
	return h
}

// recent returns an object that was read no longer than age ago, or nil.
func (s *shelf) recent(key objectKey, age time.Duration) *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.held[key]; time.Since(p.read) <= age {
		return p.Value()
	}
	return nil
}

// find returns the newest object that a Memory holds.
func (s *shelf) find(key objectKey) (*held, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[key].Value()
	return h, h != nil
}

// sameVersion reports whether two objects of one name are the same.
func sameVersion(a, b any) bool {
	if a, ok := a.([]serviceLinks); ok {
		b, ok := b.([]serviceLinks)
		return ok && slices.EqualFunc(a, b, func(a, b serviceLinks) bool { return a.Service == b.Service && slices.Equal(a.Vars, b.Vars) })
	}
	if a, ok := a.(*certificatesv1.ClusterTrustBundleList); ok { // its version is that of the whole cluster
		b, ok := b.(*certificatesv1.ClusterTrustBundleList)
		return ok && apiequality.Semantic.DeepEqual(a.Items, b.Items)
	}
	x, ok := a.(metav1.Object)
	if !ok {
		return false
	}
	y, ok := b.(metav1.Object)
	return ok && x.GetUID() == y.GetUID() && x.GetResourceVersion() != "" && x.GetResourceVersion() == y.GetResourceVersion()
}

// A keptObject is an object of a Memory on disk.
type keptObject struct {
	Kind      string          `json:"kind"`
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name"`
	Object    json.RawMessage `json:"object,omitempty"` // none: the API server has none
}

// A keptMemory is a Memory on disk.
type keptMemory struct {
	Objects []keptObject `json:"objects,omitempty"`
	// Sealed is a list of Secrets and tokens as JSON, as the Sealer returned it.
	Sealed []byte `json:"sealed,omitempty"`
}

// The kinds of objects in a Memory that are no kinds of the API.
const (
	kindServices = "Service"
	kindToken    = "Token"
	// kindCertificate is for objects that are never on disk.
	kindCertificate = "Certificate"
)

// isSecret reports whether objects of a kind must not be on disk unless they are sealed.
func isSecret(kind string) bool { return kind == "Secret" || kind == kindToken }

// objectOf returns an empty object of a kind to decode into, or nil for an unknown kind.
func objectOf(kind string) any {
	switch kind {
	case "ConfigMap":
		return new(corev1.ConfigMap)
	case "Secret":
		return new(corev1.Secret)
	case "ClusterTrustBundle":
		return new(certificatesv1.ClusterTrustBundle)
	case "ClusterTrustBundleList":
		return new(certificatesv1.ClusterTrustBundleList)
	case kindServices:
		return new([]serviceLinks)
	case kindToken:
		return new(keptToken)
	}
	return nil
}

// Encode returns the content of m for a file. Secrets and tokens are in it as sealer
// returns them; if sealer is nil, they are left out. Certificates always are.
func (m *Memory) Encode(sealer Sealer) ([]byte, error) {
	m.mu.Lock()
	all := maps.Clone(m.held)
	m.mu.Unlock()
	var out keptMemory
	var secrets []keptObject
	keys := slices.SortedFunc(maps.Keys(all), func(a, b objectKey) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	for _, key := range keys {
		if key.kind == kindCertificate {
			continue
		}
		kept := keptObject{Kind: key.kind, Namespace: key.namespace, Name: key.name}
		if object := all[key].object; object != nil {
			if r, ok := object.(runtime.Object); ok {
				r = r.DeepCopyObject()
				if m, ok := r.(metav1.Object); ok {
					m.SetManagedFields(nil) // often larger than the rest
				}
				object = r
			}
			data, err := json.Marshal(object)
			if err != nil {
				return nil, err
			}
			kept.Object = data
		}
		if isSecret(key.kind) {
			secrets = append(secrets, kept)
		} else {
			out.Objects = append(out.Objects, kept)
		}
	}
	if sealer != nil && len(secrets) > 0 {
		data, err := json.Marshal(secrets)
		if err == nil {
			out.Sealed, err = sealer.Seal(data)
		}
		if err != nil {
			return nil, fmt.Errorf("podenv: seal: %w", err)
		}
	}
	return json.Marshal(out)
}

// decode is the inverse of Encode. share returns what the Memory holds of an object.
func (m *Memory) decode(data []byte, sealer Sealer, share func(objectKey, any) *held) error {
	var in keptMemory
	if err := json.Unmarshal(data, &in); err != nil {
		return fmt.Errorf("podenv: %w", err)
	}
	var errs []error
	if len(in.Sealed) > 0 {
		var secrets []keptObject
		plain, err := []byte(nil), errors.New("there is no Sealer")
		if sealer != nil {
			plain, err = sealer.Open(in.Sealed)
		}
		if err == nil {
			err = json.Unmarshal(plain, &secrets)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("podenv: the sealed objects: %w", err))
		}
		in.Objects = append(in.Objects, secrets...)
	}
	for _, kept := range in.Objects {
		key := objectKey{kept.Kind, kept.Namespace, kept.Name}
		obj := objectOf(kept.Kind)
		switch {
		case obj == nil:
			continue // of another version of this package
		case len(kept.Object) == 0:
			m.keep(key, &held{})
			continue
		}
		if err := json.Unmarshal(kept.Object, obj); err != nil {
			errs = append(errs, fmt.Errorf("podenv: %s %s/%s: %w", kept.Kind, kept.Namespace, kept.Name, err))
			continue
		}
		if links, ok := obj.(*[]serviceLinks); ok {
			obj = *links
		}
		m.keep(key, share(key, obj))
	}
	m.version = 0
	return errors.Join(errs...)
}
