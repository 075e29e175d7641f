// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

func (c *call) get() (*answer, error) {
	if err := c.waitFresh(c.query.Get("resourceVersion")); err != nil {
		return nil, err
	}
	it, err := c.lookup()
	if err != nil {
		return nil, err
	}
	return c.object(http.StatusOK, it)
}

// lookup finds the object that the path names.
func (c *call) lookup() (*item, error) {
	st := c.s.store
	st.mu.Lock()
	it := c.table().items[c.key()]
	st.mu.Unlock()
	if it == nil {
		return nil, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	return it, nil
}

func parseRV(rv string) (uint64, error) {
	if rv == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: resourceVersion: Invalid value: %q: %v", rv, err))
	}
	return n, nil
}

// freshWait is how long the API server waits for a resourceVersion that it has
// not seen yet.
const freshWait = 3 * time.Second

// waitFresh makes a read that wants a newer state than there is wait for it.
func (c *call) waitFresh(rv string) error {
	want, err := parseRV(rv)
	if err != nil {
		return err
	}
	st := c.s.store
	for deadline := time.Now().Add(freshWait); ; {
		st.mu.Lock()
		have := st.rv
		st.mu.Unlock()
		if want <= have {
			return nil
		}
		if !time.Now().Before(deadline) {
			e := apierrors.NewTimeoutError("Too large resource version: "+rv+", current: "+formatRV(have), 1)
			e.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
			return e
		}
		if err := sleep(c.ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// continueToken points behind the last object of a page.
type continueToken struct {
	RV        uint64 `json:"rv"`
	Namespace string `json:"ns"`
	Name      string `json:"name"`
}

func (t continueToken) String() string {
	b, _ := json.Marshal(t)
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseContinue(s string) (t continueToken, err error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, &t)
	}
	if err != nil {
		return t, apierrors.NewBadRequest("continue key is not valid: " + err.Error())
	}
	return t, nil
}

// maxSnapshots is how many paged lists can be under way per kind before the
// oldest of them expires.
const maxSnapshots = 64

func (c *call) list() (*answer, error) {
	sel, err := c.selector()
	if err != nil {
		return nil, err
	}
	opts, err := c.listOptions(false)
	if err != nil {
		return nil, err
	}
	if opts.Continue == "" {
		if err := c.waitFresh(opts.ResourceVersion); err != nil {
			return nil, err
		}
	}
	items, rv, more, err := c.page(sel, opts)
	if err != nil {
		return nil, err
	}
	m := metav1.ListMeta{ResourceVersion: formatRV(rv)}
	if more != nil {
		last := items[len(items)-1].key
		m.Continue = continueToken{RV: rv, Namespace: last.namespace, Name: last.name}.String()
		if sel.everything() {
			n := int64(*more)
			m.RemainingItemCount = &n
		}
	}
	return c.encodeList(items, m)
}

// page selects the objects of a list. more is how many are left for further
// pages, nil if this is the last.
func (c *call) page(sel *selector, opts *metav1.ListOptions) (items []*item, rv uint64, more *int, err error) {
	st := c.s.store
	st.mu.Lock()
	defer st.mu.Unlock()
	t := c.table()
	rv = st.rv
	if opts.Continue != "" {
		token, err := parseContinue(opts.Continue)
		if err != nil {
			return nil, 0, nil, err
		}
		snapshot, ok := t.snapshots[token.RV]
		if !ok {
			return nil, 0, nil, apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.")
		}
		rv = token.RV
		after := key{token.Namespace, token.Name}
		i := slices.IndexFunc(snapshot, func(it *item) bool { return it.key.compare(after) > 0 })
		if i < 0 {
			i = len(snapshot)
		}
		items = snapshot[i:]
	} else {
		items = t.sorted(sel.namespace)
	}
	items = slices.DeleteFunc(slices.Clone(items), func(it *item) bool { return !sel.matches(it.obj) })
	if opts.Limit > 0 && int64(len(items)) > opts.Limit {
		if opts.Continue == "" && t.snapshots[rv] == nil {
			if t.snapshots == nil {
				t.snapshots = map[uint64][]*item{}
			}
			if len(t.pages) == maxSnapshots {
				delete(t.snapshots, t.pages[0])
				t.pages = t.pages[1:]
			}
			t.snapshots[rv] = t.sorted("")
			t.pages = append(t.pages, rv)
		}
		n := len(items) - int(opts.Limit)
		return items[:opts.Limit], rv, &n, nil
	}
	return items, rv, nil, nil
}

// encodeList puts stored objects into a list of their kind, in which, unlike
// elsewhere, they don't carry their kind and version.
func (c *call) encodeList(items []*item, m metav1.ListMeta) (*answer, error) {
	if c.accept.partial {
		list := &metav1.PartialObjectMetadataList{ListMeta: m, Items: make([]metav1.PartialObjectMetadata, 0, len(items))}
		list.SetGroupVersionKind(metaV1.WithKind("PartialObjectMetadataList"))
		for _, it := range items {
			list.Items = append(list.Items, *partialOf(it.obj))
		}
		return &answer{code: http.StatusOK, contentType: c.accept.name, body: c.accept.encode(list)}, nil
	}
	gvk := c.kind.views[c.view].gv.WithKind(c.kind.name + "List")
	if c.kind.dynamic {
		list := &unstructured.UnstructuredList{Object: map[string]any{}}
		list.SetGroupVersionKind(gvk)
		list.SetResourceVersion(m.ResourceVersion)
		list.SetContinue(m.Continue)
		list.SetRemainingItemCount(m.RemainingItemCount)
		for _, it := range items {
			list.Items = append(list.Items, *c.kind.convertTo(it.obj, c.view).(*unstructured.Unstructured))
		}
		return &answer{code: http.StatusOK, contentType: c.accept.name, body: c.accept.encode(list)}, nil
	}
	list, err := scheme.Scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	list.GetObjectKind().SetGroupVersionKind(gvk)
	ptr, err := meta.GetItemsPtr(list)
	if err != nil {
		return nil, err
	}
	slice := reflect.MakeSlice(reflect.TypeOf(ptr).Elem(), len(items), len(items))
	for i, it := range items {
		e := slice.Index(i)
		e.Set(reflect.ValueOf(c.kind.convertTo(it.obj, c.view)).Elem())
		e.Addr().Interface().(runtime.Object).GetObjectKind().SetGroupVersionKind(noGVK)
	}
	reflect.ValueOf(ptr).Elem().Set(slice)
	lm, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	lm.SetResourceVersion(m.ResourceVersion)
	lm.SetContinue(m.Continue)
	lm.SetRemainingItemCount(m.RemainingItemCount)
	var b bytes.Buffer
	if err := c.accept.Encode(list, &b); err != nil {
		return nil, err
	}
	return &answer{code: http.StatusOK, contentType: c.accept.name, body: b.Bytes()}, nil
}
