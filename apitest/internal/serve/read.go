// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

func (c *Call) get() (*Answer, error) {
	rv := c.query.Get("resourceVersion")
	if _, err := parseRV(rv); err != nil {
		return nil, errors.New(err.Error()) // 500, unlike that of a list
	}
	if err := c.waitFresh(rv); err != nil {
		return nil, err
	}
	it, err := c.lookup()
	if until := c.s.watches.of(c.r).Until; rv != "" && until != math.MaxUint64 {
		now := it
		if it, err = c.lookupAt(until); it != now {
			c.hold(1)
		}
	}
	if err != nil {
		return nil, err
	}
	return c.object(http.StatusOK, it)
}

// lookup finds the object that the path names.
func (c *Call) lookup() (*store.Item, error) {
	st := c.s.Store
	st.Lock()
	it := c.table().Items[c.key()]
	st.Unlock()
	if it == nil {
		return nil, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	return it, nil
}

// lookupAt finds the object that the path names as it was at rv.
func (c *Call) lookupAt(rv uint64) (*store.Item, error) {
	st := c.s.Store
	st.Lock()
	items, _ := c.table().At(rv)
	it := items[c.key()]
	st.Unlock()
	if it != nil {
		return it, nil
	}
	return nil, apierrors.NewNotFound(c.resource(), c.r.Name)
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

// freshWait is the time that a read waits for a resourceVersion in the future.
const freshWait = 3 * time.Second

// waitFresh waits until the store has reached resourceVersion rv.
func (c *Call) waitFresh(rv string) error {
	want, err := parseRV(rv)
	if err != nil {
		return err
	}
	st := c.s.Store
	for deadline := time.Now().Add(freshWait); ; {
		until := c.s.watches.of(c.r).Until
		st.Lock()
		have := min(st.RV, until)
		st.Unlock()
		if want <= have {
			return nil
		}
		if !time.Now().Before(deadline) {
			e := apierrors.NewTimeoutError("Too large resource version: "+rv+", current: "+store.FormatRV(have), 1)
			e.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
			return e
		}
		if err := request.Sleep(c.ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// hold counts changes that are left out of the answer.
func (c *Call) hold(changes int) {
	if changes > 0 {
		c.s.Journal.Update(c.r, func(r *request.Request) { r.Held += changes })
	}
}

// continueToken names the last object of a page, in the format of the real
// server.
type continueToken struct {
	Version string `json:"v"`
	RV      int64  `json:"rv"`
	Start   string `json:"start"` // of the keys of the page
}

// inconsistent is the resourceVersion of a token for the newest state.
const inconsistent = -1

// pageAfter returns the token for the page after an object of a list.
func (sel *selector) pageAfter(k store.Key, rv uint64) continueToken {
	start := k.Name + "\x00"
	if sel.namespace == "" && k.Namespace != "" {
		start = k.Namespace + "/" + start
	}
	return continueToken{Version: "meta.k8s.io/v1", RV: int64(rv), Start: start}
}

// start returns the key with which the page of a token begins.
func (sel *selector) start(t continueToken) store.Key {
	if !sel.kind.Namespaced || sel.namespace != "" {
		return store.Key{Namespace: sel.namespace, Name: t.Start}
	}
	namespace, name, _ := strings.Cut(t.Start, "/")
	return store.Key{Namespace: namespace, Name: name}
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
	if err == nil && (t.Version != "meta.k8s.io/v1" || t.RV == 0 || t.Start == "" || strings.Contains("/"+t.Start, "/..")) {
		err = errors.New("incorrect encoded token")
	}
	if err != nil {
		return t, apierrors.NewBadRequest("continue key is not valid: " + err.Error())
	}
	return t, nil
}

func (c *Call) list() (*Answer, error) {
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
	m := metav1.ListMeta{ResourceVersion: store.FormatRV(rv)}
	if more != nil {
		m.Continue = sel.pageAfter(items[len(items)-1].Key, rv).String()
		if sel.everything() {
			n := int64(*more)
			m.RemainingItemCount = &n
		}
	}
	return c.encodeList(items, m)
}

// page selects the objects of a list. more is how many are left for further
// pages, nil if this is the last.
func (c *Call) page(sel *selector, opts *metav1.ListOptions) (items []*store.Item, rv uint64, more *int, err error) {
	until := c.s.watches.of(c.r).Until
	var first store.Key
	st := c.s.Store
	st.Lock()
	defer st.Unlock()
	t := c.table()
	rv = st.RV
	asked, _ := strconv.ParseUint(opts.ResourceVersion, 10, 64) // checked by waitFresh
	tooOld := "The resourceVersion for the provided list is too old."
	switch {
	case opts.Continue != "":
		token, err := parseContinue(opts.Continue)
		if err != nil {
			return nil, 0, nil, err
		}
		if asked > 0 {
			return nil, 0, nil, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		if opts.ResourceVersion == "0" {
			opts.Limit = 0
		}
		if token.RV != inconsistent {
			rv = uint64(token.RV)
		}
		first = sel.start(token)
		tooOld = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter."
	case asked > 0 && (opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact || opts.ResourceVersionMatch == "" && opts.Limit > 0):
		rv = asked
	case opts.ResourceVersion != "" && (opts.Limit == 0 || asked == 0):
		// The watch cache serves such a list, and as a whole.
		rv, opts.Limit = min(rv, until), 0
		if evs, ok := t.Since(rv); ok {
			c.hold(sel.count(evs))
		}
	}
	at, exact := t.At(rv)
	if !exact && rv < until {
		return nil, 0, nil, apierrors.NewResourceExpired(tooOld)
	}
	for _, it := range store.Sorted(at, sel.namespace) {
		if it.Key.Compare(first) >= 0 && sel.matches(it.Obj) {
			items = append(items, it)
		}
	}
	if opts.Limit > 0 && int64(len(items)) > opts.Limit {
		n := len(items) - int(opts.Limit)
		return items[:opts.Limit], rv, &n, nil
	}
	return items, rv, nil, nil
}

// encodeList encodes stored objects as a list of their kind. The objects in a list
// have no kind and apiVersion.
func (c *Call) encodeList(items []*store.Item, m metav1.ListMeta) (*Answer, error) {
	if c.accept.Partial {
		list := &metav1.PartialObjectMetadataList{ListMeta: m, Items: make([]metav1.PartialObjectMetadata, 0, len(items))}
		list.SetGroupVersionKind(codec.MetaV1.WithKind("PartialObjectMetadataList"))
		for _, it := range items {
			list.Items = append(list.Items, *codec.PartialOf(it.Obj))
		}
		return &Answer{Code: http.StatusOK, ContentType: c.accept.Name, Body: c.accept.Bytes(list)}, nil
	}
	gvk := c.kind.Views[c.view].GV.WithKind(c.kind.Name + "List")
	elements := make([][]byte, len(items))
	for i, it := range items {
		elements[i] = it.EncodedAs(c.kind, c.view, c.accept.Media, store.InList)
	}
	return &Answer{Code: http.StatusOK, ContentType: c.accept.Name, Body: c.accept.EncodeElements(gvk, m, elements)}, nil
}

// selector selects the objects of a list, watch or deletecollection.
type selector struct {
	kind      *rules.Kind
	namespace string // empty for all
	labels    labels.Selector
	fields    fields.Requirements
	minor     int // the server's minor version
}

func (c *Call) selector() (*selector, error) {
	sel := &selector{kind: c.kind, minor: c.s.Minor, labels: labels.Everything()}
	if c.kind.Namespaced {
		sel.namespace = c.r.Namespace
	}
	var err error
	if c.r.LabelSelector != "" {
		if sel.labels, err = labels.Parse(c.r.LabelSelector); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if c.r.FieldSelector != "" {
		fs, err := fields.ParseSelector(c.r.FieldSelector)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		sel.fields = fs.Requirements()
		for i, req := range sel.fields {
			if names := c.kind.Views[c.view].Labels; names != nil && req.Field != "metadata.name" && req.Field != "metadata.namespace" {
				if sel.fields[i].Field = names[req.Field]; sel.fields[i].Field == "" {
					sel.fields[i].Field = "?" + req.Field
				}
			}
			if !sel.known(sel.fields[i].Field) {
				if c.kind.Fields == nil {
					return nil, apierrors.NewBadRequest(fmt.Sprintf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", req.Field))
				}
				unsupported := "field label not supported"
				if c.kind.Resource == "resourceslices" { // it says more
					unsupported += " for " + c.kind.Views[c.view].GV.WithKind(c.kind.Name).String()
				}
				return nil, apierrors.NewBadRequest(unsupported + ": " + req.Field)
			}
		}
	}
	return sel, nil
}

func (sel *selector) known(field string) bool {
	switch field {
	case "metadata.name":
		return true
	case "metadata.namespace":
		return sel.kind.Namespaced
	}
	if sel.kind.Fields == nil || field == resourcev1.ResourceSliceSelectorPoolName && sel.minor < 37 {
		return false
	}
	_, ok := sel.kind.Fields(sel.kind.Zero(0), field)
	return ok
}

func (sel *selector) everything() bool { return sel.labels.Empty() && len(sel.fields) == 0 }

func (sel *selector) matches(obj runtime.Object) bool {
	m := codec.MetaOf(obj)
	if sel.namespace != "" && m.GetNamespace() != sel.namespace {
		return false
	}
	for _, req := range sel.fields {
		var v string
		switch req.Field {
		case "metadata.name":
			v = m.GetName()
		case "metadata.namespace":
			v = m.GetNamespace()
		default:
			v, _ = sel.kind.Fields(obj, req.Field)
		}
		if (v == req.Value) == (req.Operator == selection.NotEquals) {
			return false
		}
	}
	return sel.labels.Empty() || sel.labels.Matches(labels.Set(m.GetLabels()))
}

// count returns how many of the changes are about selected objects.
func (sel *selector) count(changes []store.Event) (n int) {
	for _, ev := range changes {
		if sel.matches(ev.Cur.Obj) || ev.Prev != nil && sel.matches(ev.Prev.Obj) {
			n++
		}
	}
	return n
}

// listOptions reads and validates the options of a list or watch.
func (c *Call) listOptions(watchListOK bool) (*metav1.ListOptions, error) {
	opts := &metav1.ListOptions{}
	q := url.Values{}
	for k, v := range c.query {
		// Selectors are read elsewhere.
		if k != "labelSelector" && k != "fieldSelector" {
			q[k] = v
		}
	}
	if err := metav1.Convert_url_Values_To_v1_ListOptions(&q, opts, nil); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	internal := &internalversion.ListOptions{
		Watch: opts.Watch, AllowWatchBookmarks: opts.AllowWatchBookmarks, ResourceVersion: opts.ResourceVersion,
		ResourceVersionMatch: opts.ResourceVersionMatch, TimeoutSeconds: opts.TimeoutSeconds, Limit: opts.Limit,
		Continue: opts.Continue, SendInitialEvents: opts.SendInitialEvents,
	}
	// A watch that starts anywhere gets its initial events anyhow, and with
	// bookmarks the end of them.
	internalversion.SetListOptionsDefaults(internal, watchListOK)
	if errs := internalvalidation.ValidateListOptions(internal, watchListOK); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	opts.SendInitialEvents = internal.SendInitialEvents
	return opts, nil
}
