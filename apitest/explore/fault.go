// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/internal/plan"
)

// Durations of faults, in virtual time.
const (
	slowFor   = 5 * time.Second
	answerIn  = time.Second
	lateFor   = 10 * time.Second
	dropFor   = 5 * time.Second
	staleFor  = 15 * time.Second
	pauseFor  = time.Minute
	restoreIn = 5 * time.Second
)

// Fault is one kind of disturbance, which is tried at each of its places.
type Fault struct {
	// Name is in the plan lines. It must not contain "@", "+" or "#".
	Name string
	// Do acts as another client, immediately before a write or a call of a program. It
	// must not wait.
	Do func(w *World)
	// World means that the fault changes the goal of the programs, as the deletion
	// of an object does. Such a run need not end as the reference does: only the
	// invariants are asked, and panics, loops and left goroutines are found.
	World bool
	// Rest means that the fault is also tried at rest, after each step. So a fault that changes
	// a field asks whether a program that has nothing else to do puts it right.
	Rest bool

	places  func(plan.Place) bool // nil: writes, calls and steps
	shared  bool                  // at a step it is the same for all programs
	watched bool                  // one plan for each resource that the program watches
	objects bool                  // one plan for each object
	lasts   time.Duration
	things  bool // one plan for each thing outside that is at rest
	spans   bool // the next step begins while it lasts, so nothing is compared before that
	keeps   bool // the goal is the same as before, though it changes the world
	later   bool // apply reports with exchange.acted that the fault has had an effect
	apply   func(x *exchange)
	object  string // in a plan: the object, as "Kind ns/name", or the resource
	hit     int    // in a plan: its index
}

// Faults returns the faults that are tried by default. A caller may leave some out and
// append its own.
//
//	crash before       the process ends before a write or call, and starts again
//	crash after        the process ends after a write or call, before its answer
//	lost answer        a write is stored, and its answer is lost
//	late answer        a write is stored, and its answer comes a second later, after the events
//	409                an update or patch is refused with Conflict
//	429                a request is refused with TooManyRequests, Retry-After 1
//	500, 503, reset    a request is refused, or its connection breaks
//	slow               a request reaches the server 5 s later
//	late events        from a write on, all watch events are held back for 10 s
//	late RESOURCE      the same for the events of one resource, before which others arrive
//	dropped events     from a write on, 5 s of watch events are lost, and watches expire
//	short watches      from a step on, each watch ends after its first event, for a minute
//	stale 1, 2, 4      as crash after, with reads of a cache, which are so many writes of
//	                   anybody behind, for 15 s; other reads are as new as ever
//	takeover           the process is paused for a minute; a second one starts on another host
//	edit OBJECT        another client annotates the object before a write or call
//	delete OBJECT      another client deletes it
//	recreate OBJECT    another client deletes it and creates it again, without its status
//	delete unseen OBJECT  as delete, at rest; the event is lost, and watches expire
//	prune THING        at rest, an administrator deletes something outside of the API; see Outside
//	restore            5 s after a write, the state before it is restored from a backup
//
// The places of a fault are writes, and also calls if the list says so. Faults that refuse or
// slow down requests are also tried at reads. Faults that are not about one request are also
// tried at steps, which are actions of other clients. There, a fault
// of one program, such as a crash, is tried for each program. Other faults are tried once.
func Faults() []Fault {
	faults := []Fault{
		{Name: "crash before", apply: func(x *exchange) { x.p.crash() }},
		{Name: "crash after", apply: func(x *exchange) { x.after(x.p.crash) }},
		{Name: "lost answer", places: writes, apply: func(x *exchange) {
			send := x.send
			x.send = func() (*http.Response, error) {
				resp, err := send()
				if resp != nil {
					resp.Body.Close()
				}
				if err == nil {
					err = apitest.ErrConnReset
				}
				return nil, err
			}
		}},
		{Name: "late answer", places: writes, lasts: answerIn, spans: true, apply: func(x *exchange) {
			send := x.send
			x.send = func() (*http.Response, error) {
				resp, err := send()
				if late := x.wait(answerIn); late != nil {
					if resp != nil {
						resp.Body.Close()
					}
					return nil, late
				}
				return resp, err
			}
		}},
		{Name: "409", places: func(p plan.Place) bool { return p.Verb == "update" || p.Verb == "patch" },
			apply: refuse(http.StatusConflict, metav1.StatusReasonConflict)},
		{Name: "429", places: requests, apply: refuse(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)},
		{Name: "500", places: requests, apply: refuse(http.StatusInternalServerError, metav1.StatusReasonInternalError)},
		{Name: "503", places: requests, apply: refuse(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)},
		{Name: "reset", places: requests, apply: func(x *exchange) {
			x.send = func() (*http.Response, error) { return nil, apitest.ErrConnReset }
		}},
		{Name: "slow", places: requests, lasts: slowFor, spans: true, apply: func(x *exchange) {
			send := x.send
			x.send = func() (*http.Response, error) {
				if err := x.wait(slowFor); err != nil {
					return nil, err
				}
				return send()
			}
		}},
		{Name: "late events", places: changes, shared: true, lasts: lateFor, spans: true, later: true, apply: func(x *exchange) {
			m := ofPrograms("")
			x.holds(lateFor, m, x.w.Server.StallWatches(m))
		}},
		{Name: "late", places: changes, watched: true, lasts: lateFor, spans: true, later: true, apply: func(x *exchange) {
			m := ofPrograms(x.p.program.Name)
			m.Resource = x.object
			x.holds(lateFor, m, x.w.Server.StallWatches(m))
		}},
		{Name: "dropped events", places: changes, shared: true, lasts: dropFor, later: true, apply: drop},
		{Name: "short watches", places: func(p plan.Place) bool { return p.Verb == stepVerb }, shared: true, lasts: pauseFor, later: true, apply: shorten},
		{Name: "takeover", lasts: pauseFor, spans: true, apply: takeover},
		{Name: "edit", objects: true, shared: true, Rest: true, later: true, apply: edit},
		{Name: "delete unseen", places: nowhere, objects: true, shared: true, Rest: true, World: true, lasts: dropFor, later: true, apply: func(x *exchange) {
			drop(x)
			x.remove(metav1.DeleteOptions{})
		}},
		{Name: "delete", Rest: true, objects: true, shared: true, World: true, later: true, apply: func(x *exchange) { x.remove(metav1.DeleteOptions{}) }},
		{Name: "recreate", objects: true, shared: true, World: true, keeps: true, later: true, apply: recreate},
		{Name: "prune", places: nowhere, things: true, Rest: true, later: true, apply: prune},
		{Name: "restore", places: changes, shared: true, World: true, lasts: restoreIn, later: true, apply: func(x *exchange) {
			restore := x.w.Server.Backup()
			acted, then := x.acted(), x.w.Server.ResourceVersion()
			time.AfterFunc(restoreIn, func() {
				if x.w.Server.ResourceVersion() != then {
					acted()
				}
				x.w.note("the API server is restored")
				restore()
				x.w.changed()
			})
		}},
	}
	for _, k := range []int{1, 2, 4} {
		faults = append(faults, Fault{Name: "stale " + strconv.Itoa(k), places: changes, lasts: staleFor, spans: true, later: true, apply: func(x *exchange) {
			m, holds := ofPrograms(x.p.program.Name), x.holding()
			x.after(func() {
				lists := x.w.Server.RefuseWatchLists(m) // which may not be old
				reads := x.w.Server.StallReads(m, k)
				x.w.note("for %v, its reads are as of %d writes before, and watches that ask for a list first get 422", staleFor, k)
				holds(staleFor, m, func() { lists(); reads() })
				x.p.crash()
			})
		}})
	}
	return faults
}

func nowhere(plan.Place) bool    { return false }
func requests(p plan.Place) bool { return p.Verb != "call" && p.Verb != stepVerb }
func writes(p plan.Place) bool   { return requests(p) && p.IsWrite() }
func changes(p plan.Place) bool  { return p.Verb != "call" && acts(p) }

// acts reports whether something changes at p: it is a write, a call or a step.
func acts(p plan.Place) bool { return p.IsWrite() || p.Verb == stepVerb }

// stepVerb is the verb of the place of a step.
const stepVerb = "step"

// clean returns a name without the separators of plan lines.
func clean(name string) string { return plan.Clean(name) }

// exchange is a request or call that a fault acts on.
type exchange struct {
	w     *World
	p     *Process
	ctx   context.Context
	place plan.Place
	entry *entry
	send  func() (*http.Response, error) // the rest of the exchange

	object string // the object of the fault
	hit    int    // the index of the fault in the plan
}

func (x *exchange) apply(f Fault) {
	x.object, x.hit = f.object, f.hit
	if f.Do != nil {
		f.Do(x.w)
	}
	if f.apply != nil {
		f.apply(x)
	}
	if !f.later {
		x.acted()()
	}
}

// acted returns a function that records that the fault has had an effect.
func (x *exchange) acted() func() {
	w, hit := x.w, x.hit
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.acted[hit] = true
	}
}

// holds ends a delay of the requests that m matches after d. It has had an effect if a
// change was held back.
func (x *exchange) holds(d time.Duration, m apitest.Match, end func()) { x.holding()(d, m, end) }

// holding returns holds for the fault that is applied now.
func (x *exchange) holding() func(d time.Duration, m apitest.Match, end func()) {
	acted := x.acted()
	return func(d time.Duration, m apitest.Match, end func()) {
		was := held(x.w.Server, m)
		time.AfterFunc(d, func() {
			if held(x.w.Server, m) > was {
				acted()
			}
			end()
		})
	}
}

// held counts the changes that were held back from the requests that m matches.
func held(s *apitest.Server, m apitest.Match) (n int) {
	for _, r := range s.Requests(m) {
		n += r.Held
	}
	return n
}

// agent is in the User-Agent of each request of a program, before its name.
const agent = " explore/"

// ofPrograms matches the requests of a program, or those of all programs for "".
func ofPrograms(name string) apitest.Match {
	return apitest.Match{Func: func(r apitest.Request) bool {
		_, program, ok := strings.Cut(r.UserAgent, agent)
		return ok && (name == "" || program == name)
	}}
}

// drop loses the events of all watches for a while. Then the watches end, and can't go on
// where they were.
func drop(x *exchange) {
	m := ofPrograms("")
	resume := x.w.Server.StallWatches(m)
	x.holds(dropFor, m, func() {
		x.w.Server.Compact()
		x.w.Server.BreakWatches(m)
		time.Sleep(time.Nanosecond) // the streams have ended, without the events that were held back
		resume()
	})
}

// shorten ends each watch after its first event, for a while.
func shorten(x *exchange) {
	m := ofPrograms("")
	m.Verb = "watch"
	acted, remove := x.acted(), x.w.Server.ShortenWatches(m)
	m.Func = func(match func(apitest.Request) bool) func(apitest.Request) bool {
		return func(r apitest.Request) bool { return match(r) && r.Fault == "ShortenWatches" }
	}(m.Func)
	time.AfterFunc(pauseFor, func() {
		remove()
		if len(x.w.Server.Requests(m)) > 0 {
			acted()
		}
	})
}

// prune deletes something outside of the API.
func prune(x *exchange) {
	for _, o := range x.w.scenario.Outside {
		for _, thing := range o.resting() {
			if o.Name+"/"+clean(thing) == x.object {
				_ = x.w.guard("Outside "+o.Name, func() error { o.Delete(thing); return nil })
				x.w.note("an administrator: delete %s", x.object)
				x.acted()()
				return
			}
		}
	}
	x.w.note("there is no %s", x.object)
}

// resting returns the things that an administrator deletes.
func (o *Outside) resting() []string {
	if o.Rest == nil || o.Delete == nil {
		return nil
	}
	return o.Rest()
}

// wait lets time pass. It returns an error if the program gives up the request before that.
func (x *exchange) wait(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-x.ctx.Done():
		return x.ctx.Err()
	}
}

// after calls f when the request has been served.
func (x *exchange) after(f func()) {
	send := x.send
	x.send = func() (*http.Response, error) {
		resp, err := send()
		f()
		return resp, err
	}
}

// refuse answers instead of the server.
func refuse(code int, reason metav1.StatusReason) func(*exchange) {
	return func(x *exchange) {
		status := metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Code: int32(code), Reason: reason, Message: "refused by explore", Details: &metav1.StatusDetails{},
		}
		header := http.Header{"Content-Type": {"application/json"}}
		if code == http.StatusTooManyRequests {
			header.Set("Retry-After", "1")
			status.Details.RetryAfterSeconds = 1
		}
		body, err := json.Marshal(status)
		if err != nil {
			panic(err) // a struct of strings and numbers
		}
		x.send = func() (*http.Response, error) {
			return &http.Response{
				Status: http.StatusText(code), StatusCode: code, Proto: "HTTP/2.0", ProtoMajor: 2, Header: header,
				Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
			}, nil
		}
	}
}

// takeover pauses the process and starts a second one of the program.
func takeover(x *exchange) {
	w, p := x.w, x.p
	p.hold(pauseFor)
	w.mu.Lock()
	w.extra[p.program.Name]++
	n := w.extra[p.program.Name] + 1
	w.mu.Unlock()
	w.launch(p.program, &lane{name: fmt.Sprintf("%s(%d)", p.program.Name, n), host: fmt.Sprintf("host-%d", n)})
	if x.place.Verb == stepVerb {
		return // another client acts, which is not paused
	}
	send := x.send
	x.send = func() (*http.Response, error) {
		p.held(x.ctx)
		return send()
	}
}

// target returns the object of the fault, and a client for it, or false if there is none.
func (x *exchange) target() (dynamic.ResourceInterface, *unstructured.Unstructured, bool) {
	for _, obj := range x.w.Server.Objects() {
		if objectName(obj) != x.object {
			continue
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			break
		}
		u := &unstructured.Unstructured{Object: content}
		client, err := x.w.client(u.GroupVersionKind(), u.GetNamespace())
		if err != nil {
			x.w.problem("no client for %s: %v", x.object, err)
			return nil, nil, false
		}
		return client, u, true
	}
	x.w.note("there is no %s", x.object)
	return nil, nil, false
}

// client returns a client for the resource that has the kind in the catalog of the server.
func (w *World) client(gvk schema.GroupVersionKind, namespace string) (dynamic.ResourceInterface, error) {
	config := w.Server.Config(apitest.User{})
	catalog, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	list, err := catalog.ServerResourcesForGroupVersion(gvk.GroupVersion().String())
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Kind == gvk.Kind && !strings.Contains(r.Name, "/") })
	if at < 0 {
		return nil, fmt.Errorf("%v has no resource", gvk)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	resource := client.Resource(gvk.GroupVersion().WithResource(list.APIResources[at].Name))
	if namespace == "" {
		return resource, nil
	}
	return resource.Namespace(namespace), nil
}

// edit annotates the object without the admission of the server, which would add fields
// that the scenario's Put has left out.
func edit(x *exchange) {
	for _, obj := range x.w.Server.Objects() {
		if m, err := meta.Accessor(obj); err == nil && objectName(obj) == x.object {
			annotations := maps.Clone(m.GetAnnotations())
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[editedKey] = strconv.Itoa(x.place.Number)
			m.SetAnnotations(annotations)
			x.w.Server.Put(obj)
			x.report("edit", nil)
			x.acted()()
			return
		}
	}
	x.w.note("there is no %s", x.object)
}

func (x *exchange) remove(opts metav1.DeleteOptions) (dynamic.ResourceInterface, *unstructured.Unstructured, bool) {
	client, u, ok := x.target()
	if ok {
		obj := x.w.object(x.object)
		owned := obj != nil && x.w.owned(obj)
		err := client.Delete(context.Background(), u.GetName(), opts)
		if err == nil {
			x.acted()()
		}
		x.report("delete", err)
		if err == nil && obj != nil && !owned {
			x.w.mu.Lock()
			x.w.deleted = append(x.w.deleted, obj)
			x.w.mu.Unlock()
		}
	}
	return client, u, ok
}

func recreate(x *exchange) {
	now := int64(0)
	client, u, ok := x.remove(metav1.DeleteOptions{GracePeriodSeconds: &now})
	if !ok {
		return
	}
	if len(u.GetFinalizers()) > 0 {
		_, err := client.Patch(context.Background(), u.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		x.report("remove the finalizers of", err)
	}
	fresh := u.DeepCopy()
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields", "selfLink"} {
		unstructured.RemoveNestedField(fresh.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(fresh.Object, "status")
	_, err := client.Create(context.Background(), fresh, metav1.CreateOptions{})
	x.report("create", err)
}

// report enters what another client did in the journal.
func (x *exchange) report(what string, err error) {
	if err != nil {
		what += " (" + short(err.Error()) + ")"
	}
	x.w.note("another client: %s %s", what, x.object)
}

// each reports whether there is a plan for each object or resource at a place.
func (f *Fault) each() bool { return f.objects || f.watched || f.things }

// faultsOf returns the faults of the hits of a plan.
func faultsOf(known []Fault, p plan.Plan) (faults []Fault, _ error) {
	known = append(slices.Clone(known), Faults()...)
	for _, h := range p {
		f, at := faultNamed(known, h.Fault)
		if at < 0 {
			return nil, fmt.Errorf("explore: plan %q: unknown fault %q", p, h.Fault)
		}
		f.hit = len(faults)
		if f.each() {
			f.object = strings.TrimPrefix(h.Fault, f.Name+" ")
		}
		faults = append(faults, f)
	}
	return faults, nil
}

// faultNamed returns the fault of a name in a plan and its index, or -1.
func faultNamed(known []Fault, name string) (Fault, int) {
	at := slices.IndexFunc(known, func(f Fault) bool { return f.Name == name && !f.each() })
	if at < 0 {
		at = slices.IndexFunc(known, func(f Fault) bool { return f.each() && strings.HasPrefix(name, f.Name+" ") })
	}
	if at < 0 {
		return Fault{}, at
	}
	return known[at], at
}

// plansAt returns the plans with one fault for a place.
func plansAt(faults []Fault, s spot) (plans []plan.Plan) {
	for _, f := range faults {
		switch {
		case s.place.Verb == restVerb && !f.Rest:
		case s.place.Verb == restVerb && f.things:
			for _, thing := range s.things {
				plans = append(plans, plan.Plan{{Fault: f.Name + " " + thing, Place: s.place}})
			}
		case s.place.Verb == restVerb && f.objects:
			for _, obj := range s.objects {
				plans = append(plans, plan.Plan{{Fault: f.Name + " " + obj, Place: s.place}})
			}
		case s.place.Verb == restVerb:
			plans = append(plans, plan.Plan{{Fault: f.Name, Place: s.place}})
		case f.places != nil && !f.places(s.place), f.places == nil && !acts(s.place):
		case f.shared && s.again:
		case f.objects:
			for _, obj := range s.objects {
				plans = append(plans, plan.Plan{{Fault: f.Name + " " + obj, Place: s.place}})
			}
		case f.watched && len(s.watched) == 1:
			// That is "late events".
		case f.watched:
			for _, resource := range s.watched {
				plans = append(plans, plan.Plan{{Fault: f.Name + " " + resource, Place: s.place}})
			}
		default:
			plans = append(plans, plan.Plan{{Fault: f.Name, Place: s.place}})
		}
	}
	return plans
}
