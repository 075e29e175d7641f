// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
)

// Texts that differ from run to run without a meaning.
var (
	instants = regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d| [+-]\d{4} \w+)?`)
	uids     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
)

// editedKey is the annotation of the edit fault. The comparison ignores it.
const editedKey = "explore.test/edited"

// isHistory reports whether an object only tells what was: a ReplicaSet without replicas that its
// controller keeps for a roll-back. It is gone for good with its controller, or alone.
func isHistory(obj apiruntime.Object) bool {
	rs, ok := obj.(*appsv1.ReplicaSet)
	return ok && rs.Spec.Replicas != nil && *rs.Spec.Replicas == 0 && rs.Status.Replicas == 0 && metav1.GetControllerOf(rs) != nil
}

// normalized returns objects of a server in a form that can be compared between
// runs, by "Kind ns/name". Objects with generated names are collected under the prefix, and
// those whose names depend on generated ones under "*".
func normalized(objects []apiruntime.Object, ignore []string, names fixedNames) map[string]any {
	n := &normalizer{general: map[string]string{}, owners: map[string]string{}, ignore: ignore}
	for _, obj := range objects {
		m, err := meta.Accessor(obj)
		if err != nil {
			continue
		}
		if prefix := m.GetGenerateName(); prefix != "" && strings.HasPrefix(m.GetName(), prefix) {
			n.general[m.GetName()] = prefix + "*"
		}
	}
	n.sort()
	for _, obj := range objects {
		if name := objectName(obj); name != "" && n.text(name) == name && names.without(name) {
			n.general[name[len(beforeName(name)):]] = "*"
		}
	}
	n.sort()
	for _, obj := range objects {
		if m, err := meta.Accessor(obj); err == nil {
			n.owners[string(m.GetUID())] = "UID of " + n.text(objectName(obj))
		}
	}
	out := map[string]any{}
	generated := map[string][]any{}
	for _, obj := range objects {
		name := objectName(obj)
		m, err := meta.Accessor(obj)
		if name == "" || err != nil {
			continue
		}
		content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			continue
		}
		kind := obj.GetObjectKind().GroupVersionKind().Kind
		if slices.Contains(ignore, kind) || isHistory(obj) {
			continue
		}
		n.generation = m.GetGeneration()
		v := n.value(kind, "", content)
		if key := n.text(name); key != name {
			generated[key] = append(generated[key], v)
		} else {
			out[name] = v
		}
	}
	for key, list := range generated {
		slices.SortFunc(list, func(a, b any) int { return bytes.Compare(encode(a), encode(b)) })
		for i, v := range list {
			out[fmt.Sprintf("%s (%d"+ofThem, key, i+1)] = v
		}
	}
	return out
}

// beforeName returns the part of "Kind ns/name" before the name.
func beforeName(name string) string { return name[:strings.LastIndexAny(name, "/ ")+1] }

// fixedNames has the names of objects that are the same in all runs without faults, by kind and
// namespace. It has only those kinds and namespaces that also have other names, which depend on
// generated names, UIDs or resourceVersions.
type fixedNames map[string]map[string]bool

func fixed(runs [][]*state) fixedNames {
	count := map[string]int{}
	for _, states := range runs {
		names := map[string]bool{}
		for _, s := range states {
			for name := range s.all {
				if !strings.HasSuffix(name, ofThem) && !strings.HasPrefix(name, outsideKind+" ") {
					names[name] = true
				}
			}
		}
		for name := range names {
			count[name]++
		}
	}
	fixed := fixedNames{}
	for name, n := range count {
		if n < len(runs) {
			fixed[beforeName(name)] = map[string]bool{}
		}
	}
	for name, n := range count {
		if names := fixed[beforeName(name)]; names != nil && n == len(runs) {
			names[name] = true
		}
	}
	return fixed
}

// without reports whether the name of an object is one of those that are not fixed.
func (f fixedNames) without(name string) bool {
	names := f[beforeName(name)]
	return names != nil && !names[name]
}

// ofThem ends the key of each object of a group, and that of a field of a map.
const ofThem = " of them)"

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Append(nil, v)
	}
	return b
}

type normalizer struct {
	general    map[string]string // generated names, and what replaces them
	names      []string          // the same names; one that begins with another comes before it
	owners     map[string]string // UIDs of objects that exist
	ignore     []string
	generation int64 // of the object
}

func (n *normalizer) sort() {
	n.names = slices.SortedFunc(maps.Keys(n.general), func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
}

// text replaces times, UIDs and generated names.
func (n *normalizer) text(s string) string {
	s = instants.ReplaceAllString(s, "TIME")
	s = uids.ReplaceAllStringFunc(s, func(uid string) string {
		if owner, ok := n.owners[uid]; ok {
			return owner
		}
		return "UID"
	})
	for _, name := range n.names {
		s = strings.ReplaceAll(s, name, n.general[name])
	}
	return s
}

// always lists fields that have no meaning for a comparison.
var always = []string{
	"*.metadata.uid", "*.metadata.resourceVersion", "*.metadata.creationTimestamp", "*.metadata.managedFields", "*.metadata.generation",
	"*.metadata.annotations." + editedKey, "Lease.spec.leaseTransitions", "Lease.spec.acquireTime", "Lease.spec.renewTime",
}

// allocated lists fields for which the API server takes the next free value, so that it depends
// on the order of requests.
var allocated = []string{"Service.spec.clusterIP", "Service.spec.clusterIPs", "Service.spec.ports.nodePort", "Service.spec.healthCheckNodePort"}

func (n *normalizer) ignored(kind, path string) bool {
	for _, list := range [][]string{always, n.ignore} {
		for _, field := range list {
			if field == "*."+path || field == kind+"."+path {
				return true
			}
		}
	}
	return false
}

// value returns a copy of v without ignored fields, or nil for an empty value.
func (n *normalizer) value(kind, path string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		same := map[string][]any{} // the values of keys that differ only in such a text
		for key, field := range v {
			below := strings.TrimPrefix(path+"."+key, ".")
			if n.ignored(kind, below) {
				continue
			}
			if key == "observedGeneration" {
				if g, ok := field.(int64); ok {
					if g == n.generation {
						out[key] = "current"
					} else {
						out[key] = "outdated"
					}
					continue
				}
			}
			if x := n.value(kind, below, field); x != nil {
				key = n.text(key)
				same[key] = append(same[key], x)
			}
		}
		for key, values := range same {
			slices.SortFunc(values, func(a, b any) int { return bytes.Compare(encode(a), encode(b)) })
			out[key] = values[0]
			for i, x := range values[1:] {
				out[fmt.Sprintf("%s (%d"+ofThem, key, i+2)] = x
			}
		}
		if len(out) == 0 {
			return nil
		}
		return out
	case []any:
		out := make([]any, 0, len(v))
		for _, element := range v {
			out = append(out, n.value(kind, path, element))
		}
		if len(out) == 0 {
			return nil
		}
		if unordered(path, out) {
			slices.SortFunc(out, func(a, b any) int { return bytes.Compare(encode(a), encode(b)) })
		}
		return out
	case string:
		if v == "" {
			return nil
		}
		if v != corev1.ClusterIPNone && slices.Contains(allocated, kind+"."+path) {
			return "allocated"
		}
		return n.text(v)
	case int64:
		if slices.Contains(allocated, kind+"."+path) {
			return "allocated"
		}
	case nil:
		return nil
	}
	return v
}

// unordered reports whether a list is a set, or a map with a key.
func unordered(path string, list []any) bool {
	if strings.HasPrefix(path, "metadata.") {
		return true
	}
	for _, key := range []string{"type", "name", "key", "uid", "ip", "port"} {
		if !slices.ContainsFunc(list, func(v any) bool {
			m, ok := v.(map[string]any)
			return !ok || m[key] == nil
		}) {
			return true
		}
	}
	return false
}

// differences returns the fields in which two ends differ, as lines.
func differences(want, got map[string]any) (lines []string) {
	keys := maps.Clone(want)
	maps.Copy(keys, got)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		a, inWant := want[key]
		b, inGot := got[key]
		switch {
		case !inGot:
			lines = append(lines, key+": does not exist, but does in the reference")
		case !inWant:
			lines = append(lines, key+": exists, but not in the reference")
		default:
			lines = diff(lines, key+" ", "", a, b)
		}
	}
	return lines
}

func diff(lines []string, object, path string, want, got any) []string {
	if reflect.DeepEqual(want, got) {
		return lines
	}
	a, aMap := want.(map[string]any)
	b, bMap := got.(map[string]any)
	if aMap && bMap {
		keys := maps.Clone(a)
		maps.Copy(keys, b)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			lines = diff(lines, object, path+"."+key, a[key], b[key])
		}
		return lines
	}
	la, aList := want.([]any)
	lb, bList := got.([]any)
	if aList && bList && len(la) == len(lb) {
		for i := range la {
			lines = diff(lines, object, fmt.Sprintf("%s[%d]", path, i), la[i], lb[i])
		}
		return lines
	}
	return append(lines, fmt.Sprintf("%s: %s, in the reference %s", strings.TrimSpace(object+path), compact(got), compact(want)))
}

func compact(v any) string {
	if v == nil {
		return "none"
	}
	s := string(encode(v))
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}

// uneven returns the fields whose values differ between two runs of the reference, as
// Config.Ignore has them, whatever their order in lists and groups.
func uneven(a, b map[string]any) (fields []string) {
	x, y := values(a), values(b)
	for group, in := range x {
		also, ok := y[group]
		if !ok || in.objects != also.objects {
			continue
		}
		all := maps.Clone(in.of)
		maps.Copy(all, also.of)
		for field := range all {
			slices.Sort(in.of[field])
			slices.Sort(also.of[field])
			if !slices.Equal(in.of[field], also.of[field]) {
				fields = append(fields, field)
			}
		}
	}
	slices.Sort(fields)
	return slices.Compact(fields)
}

// fieldValues has the values of each field of the objects of a group.
type fieldValues struct {
	objects int
	of      map[string][]string
}

func values(end map[string]any) map[string]*fieldValues {
	groups := map[string]*fieldValues{}
	for key, obj := range end {
		group, _, _ := strings.Cut(key, " (")
		v := groups[group]
		if v == nil {
			v = &fieldValues{of: map[string][]string{}}
			groups[group] = v
		}
		v.objects++
		kind, _, _ := strings.Cut(key, " ")
		v.add(kind, obj)
	}
	return groups
}

func (f *fieldValues) add(path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, x := range v {
			f.add(path+"."+key, x)
		}
	case []any:
		for _, x := range v {
			f.add(path, x)
		}
	default:
		f.of[path] = append(f.of[path], string(encode(v)))
	}
}

// noise returns the fields in which two runs of the reference differ, as
// Config.Ignore has them.
func noise(a, b map[string]any) (fields []string) {
	for key, x := range a {
		if y, ok := b[key]; ok {
			kind, _, _ := strings.Cut(key, " ")
			fields = differing(fields, kind, x, y)
		}
	}
	slices.Sort(fields)
	return slices.Compact(fields)
}

func differing(fields []string, path string, a, b any) []string {
	if reflect.DeepEqual(a, b) {
		return fields
	}
	switch x := a.(type) {
	case map[string]any:
		if y, ok := b.(map[string]any); ok {
			keys := maps.Clone(x)
			maps.Copy(keys, y)
			for key := range keys {
				fields = differing(fields, path+"."+key, x[key], y[key])
			}
			return fields
		}
	case []any:
		if y, ok := b.([]any); ok && len(x) == len(y) {
			for i := range x {
				fields = differing(fields, path, x[i], y[i])
			}
			return fields
		}
	}
	return append(fields, path)
}

// leftInBubble returns the stacks of the goroutines that are left of the last bubble.
func leftInBubble() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var left []string
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		head, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(head, "synctest bubble") && !strings.Contains(head, "synctest.Run") {
			left = append(left, stack)
		}
	}
	return strings.Join(left[:min(len(left), 5)], "\n\n")
}

func objectName(obj apiruntime.Object) string {
	kind := obj.GetObjectKind().GroupVersionKind().Kind
	m, err := meta.Accessor(obj)
	if err != nil || kind == "Event" || kind == "Namespace" {
		return ""
	}
	if m.GetNamespace() == "" {
		return kind + " " + m.GetName()
	}
	return kind + " " + m.GetNamespace() + "/" + m.GetName()
}
