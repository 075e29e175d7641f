// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

var (
	large = flag.Bool("100k", false, "compare with 100,000 devices instead of 1,000 and 10,000")
	only  = flag.String("only", "", "compare in this `case` only")
)

func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// roundTrip is the server's latency for a write.
const roundTrip = 10 * time.Millisecond

// change is a case: a new list of devices, or an event.
type change struct {
	name    string
	devices func(all []resourcev1.Device) []resourcev1.Device
	happens func(s *apitest.Server)
}

var changes = []change{
	{name: "the same again", devices: func(all []resourcev1.Device) []resourcev1.Device { return all }},
	{name: "another order", devices: func(all []resourcev1.Device) []resourcev1.Device {
		all = slices.Clone(all)
		slices.Reverse(all)
		return all
	}},
	{name: "1 device changed", devices: replace(1)},
	{name: "2 devices changed", devices: replace(2)},
	{name: "7 devices changed", devices: replace(7)},
	{name: "first device removed", devices: func(all []resourcev1.Device) []resourcev1.Device { return all[1:] }},
	{name: "first device added", devices: func(all []resourcev1.Device) []resourcev1.Device {
		return slices.Insert(slices.Clone(all), 0, device(999_999, "new"))
	}},
	{name: "64 devices more", devices: func(all []resourcev1.Device) []resourcev1.Device {
		all = slices.Clone(all)
		for i := range 64 {
			all = append(all, device(900_000+i, "new"))
		}
		return all
	}},
	{name: "a slice deleted by others", happens: func(s *apitest.Server) {
		all := apitest.List[*resourcev1.ResourceSlice](s, "")
		apitest.Remove[*resourcev1.ResourceSlice](s, "", all[len(all)/2].Name)
	}},
	{name: "5 changed, one 500", devices: replace(5), happens: func(s *apitest.Server) {
		s.Inject(apitest.Fault{Match: apitest.Match{Verb: "update", Resource: "resourceslices"}, Skip: 1, Times: 1, Status: statuserr.InternalError("etcd")})
	}},
	{name: "half the devices removed", devices: func(all []resourcev1.Device) []resourcev1.Device { return all[len(all)/2:] }},
}

// replace changes n devices, evenly distributed.
func replace(n int) func([]resourcev1.Device) []resourcev1.Device {
	return func(all []resourcev1.Device) []resourcev1.Device {
		all = slices.Clone(all)
		for i := range n {
			at := i * len(all) / n
			changed := all[at].DeepCopy()
			changed.Attributes["productName"] = resourcev1.DeviceAttribute{StringValue: new(fmt.Sprint(n, " changed"))}
			all[at] = *changed
		}
		return all
	}
}

// outcome is the cost of a case.
type outcome struct {
	name   string
	writes int
	took   time.Duration // until the last write was answered
	window time.Duration // time during which the pool was incomplete
}

func (o outcome) String() string {
	return fmt.Sprintf("%d\t%v\t%v", o.writes, o.took.Round(time.Millisecond), o.window.Round(time.Millisecond))
}

func TestCompare(t *testing.T) {
	counts := []int{1000, 10_000}
	if *large {
		counts = []int{100_000}
	}
	for _, n := range counts {
		got := make(map[string][]outcome)
		for _, name := range peerNames {
			synctest.Test(t, func(t *testing.T) { got[name] = compare(t, peers[name](), n) })
		}
		out := tabwriter.NewWriter(t.Output(), 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(out, "%d devices\t%s: writes\ttook\tincomplete\t%s: writes\ttook\tincomplete\t\n", n, peerNames[0], peerNames[1])
		for i, mine := range got[peerNames[0]] {
			other := got[peerNames[1]][i]
			fmt.Fprintf(out, "%s\t%v\t%v\t\n", mine.name, mine, other)
			// One of their writes has twice as many devices as one of ours, so
			// one of their writes may correspond to two of ours, or the last
			// page may need one more.
			if i > 0 && (mine.window > other.window || other.writes > 1 && mine.writes > other.writes+1) {
				t.Errorf("%s: %v, upstream %v", mine.name, mine, other)
			}
		}
		out.Flush()
	}
}

// compare publishes n devices and makes the changes one after another.
func compare(t *testing.T, p peer, n int) (outcomes []outcome) {
	s := newServer()
	s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create,update,delete", Resource: "resourceslices"}, Latency: roundTrip})
	w := watchPool(t, s)
	p.start(t, s.Client(apitest.NodeUser(node)))
	time.Sleep(time.Minute)
	measure := func(name string, do func()) {
		synctest.Wait()
		s.ResetJournal()
		w.reset()
		begin := time.Now()
		do()
		time.Sleep(65 * time.Second) // the helper checks again after 30 s
		synctest.Wait()
		o := outcome{name: name, window: w.window()}
		for _, q := range s.Requests(apitest.Match{}) {
			if !slices.Contains([]string{"create", "update", "patch", "delete"}, q.Verb) {
				continue // a watch that begins again, now and then
			}
			o.writes++
			o.took = max(o.took, q.Time.Add(q.Duration).Sub(begin))
		}
		outcomes = append(outcomes, o)
	}
	all := devices(n)
	measure("first publish", func() { p.set(all) })
	for _, c := range changes {
		if *only != "" && c.name != *only {
			continue
		}
		measure(c.name, func() {
			if c.happens != nil {
				c.happens(s)
			}
			if c.devices != nil {
				all = c.devices(all)
				p.set(all)
			}
		})
	}
	p.stop()
	w.close()
	return outcomes
}

// poolWatch measures how long the pool was incomplete, as the scheduler sees
// it.
type poolWatch struct {
	w    watch.Interface
	done chan struct{}

	mu         sync.Mutex
	slices     map[string]resourcev1.ResourcePool
	incomplete time.Time
	total      time.Duration
}

func watchPool(t *testing.T, s *apitest.Server) *poolWatch {
	w, err := s.Client(apitest.User{}).ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{TimeoutSeconds: new(int64(1000 * 3600))})
	if err != nil {
		t.Fatal(err)
	}
	p := &poolWatch{w: w, done: make(chan struct{}), slices: map[string]resourcev1.ResourcePool{}}
	go func() {
		defer close(p.done)
		for event := range w.ResultChan() {
			if slice, ok := event.Object.(*resourcev1.ResourceSlice); ok {
				p.see(event.Type, slice)
			}
		}
	}()
	return p
}

func (p *poolWatch) see(event watch.EventType, s *resourcev1.ResourceSlice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if event == watch.Deleted {
		delete(p.slices, s.Name)
	} else {
		p.slices[s.Name] = s.Spec.Pool
	}
	top, n, count := int64(-1), int64(0), int64(0)
	for _, other := range p.slices {
		if g := other.Generation; g > top {
			top, n, count = g, 0, other.ResourceSliceCount
		}
		if other.Generation == top {
			n++
		}
	}
	switch complete := n == count; {
	case !complete && p.incomplete.IsZero():
		p.incomplete = time.Now()
	case complete && !p.incomplete.IsZero():
		p.total += time.Since(p.incomplete)
		p.incomplete = time.Time{}
	}
}

func (p *poolWatch) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total = 0
	if !p.incomplete.IsZero() {
		p.incomplete = time.Now()
	}
}

func (p *poolWatch) window() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.incomplete.IsZero() {
		return p.total + time.Since(p.incomplete)
	}
	return p.total
}

func (p *poolWatch) close() {
	p.w.Stop()
	<-p.done
}
