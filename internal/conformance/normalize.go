// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// normalizer replaces values that differ between runs: UIDs and
// resourceVersions by their number in order of appearance, and times by their
// distance from now.
type normalizer struct {
	uids map[string]string
	rvs  map[string]string
	// shared says that others write to the server, too: a kube-apiserver renews its
	// own Lease. A list that is newer than the newest known write counts as that old.
	shared bool
	newest uint64 // of rvs
}

func newNormalizer(shared bool) normalizer {
	return normalizer{uids: map[string]string{}, rvs: map[string]string{}, shared: shared}
}

var (
	uuid       = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	timestamp  = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	recordedIn = regexp.MustCompile(`(ResourceVersion in (?:the precondition|record) \()(\d+)\)`)
	versionIn  = regexp.MustCompile(`(esourceVersion(?: in [a-z ]+)?[=:] ?)(\d+)`)
)

func (n *normalizer) uid(s string) string {
	t, ok := n.uids[s]
	if !ok {
		t = fmt.Sprintf("<uid %d>", len(n.uids)+1)
		n.uids[s] = t
	}
	return t
}

func (n *normalizer) rv(s string) string {
	if s == "" || s == "0" {
		return s
	}
	t, ok := n.rvs[s]
	if !ok {
		t = fmt.Sprintf("<rv %d>", len(n.rvs)+1)
		n.rvs[s] = t
	}
	n.newest = max(n.newest, number(s))
	return t
}

// listRV is rv for the version of a list or bookmark.
func (n *normalizer) listRV(s string) string {
	if n.shared && n.newest > 0 && number(s) > n.newest {
		return n.rv(strconv.FormatUint(n.newest, 10))
	}
	return n.rv(s)
}

// number returns a resourceVersion as a number, or 0.
func number(rv string) uint64 {
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// text normalizes values within a text.
func (n *normalizer) text(s string) string {
	s, _, _ = strings.Cut(s, " (apitest has ") // only apitest gives this hint
	s = uuid.ReplaceAllStringFunc(s, n.uid)
	s = timestamp.ReplaceAllString(s, "<time>")
	s = recordedIn.ReplaceAllStringFunc(s, func(m string) string {
		p := recordedIn.FindStringSubmatch(m)
		return p[1] + n.rv(p[2]) + ")"
	})
	s = versionIn.ReplaceAllStringFunc(s, func(m string) string {
		p := versionIn.FindStringSubmatch(m)
		return p[1] + n.rv(p[2])
	})
	if i := strings.Index(s, "oo old resource version"); i >= 0 {
		s = s[:i] + "oo old resource version: <old>"
	}
	if i := strings.Index(s, "oo large resource version"); i >= 0 {
		s = s[:i] + "oo large resource version: <new>"
	}
	return s
}

// when returns a time relative to now. It rounds to ten seconds, so that a slow
// run has the same result.
func when(s string) string {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return s
	}
	d := time.Until(t).Round(10 * time.Second)
	if d == 0 {
		return "<now>"
	}
	switch {
	case d < -time.Hour || d > 24*time.Hour:
		return s
	case d < 0: // a slow run
		return "<now>"
	}
	return fmt.Sprintf("<now%+.0fs>", d.Seconds())
}

// value normalizes a JSON value with the given key.
func (n *normalizer) value(key string, v any) any {
	switch v := v.(type) {
	case object:
		out := make(object, len(v))
		// Sorted, so that each run assigns the same numbers.
		for _, k := range slices.Sorted(maps.Keys(v)) {
			e := v[k]
			switch {
			case k == "managedFields": // their content is not compared
				continue
			case k == "continue" && e != "":
				out[k] = "<some>"
				continue
			case k == "resourceVersion" && v["name"] == nil:
				if rv, ok := e.(string); ok {
					out[k] = n.listRV(rv)
					continue
				}
			}
			out[k] = n.value(k, e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = n.value(key, e)
		}
		return out
	case string:
		switch key {
		case "uid":
			return n.uid(v)
		case "resourceVersion":
			return n.rv(v)
		}
		if timestamp.MatchString(v) && len(v) < 32 {
			return when(v)
		}
		return n.text(v)
	}
	return v
}
