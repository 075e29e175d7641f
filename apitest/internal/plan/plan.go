// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package plan is the grammar of fault plans: one line that says which fault hits
// which request.
//
//	plan   = hit { " + " hit }
//	hit    = fault " @ " place
//	place  = [ program ": " ] verb " " target [ " #" number ]
//	target = resource [ "/" subresource ] [ " " [ namespace "/" ] name ]
//
// For example:
//
//	crash after @ controller: patch pods/status default/p1 #3
//	503 @ update leases kube-node-lease/n1
//
// A place without a program stands for all programs, and a place without a number for
// every such request. Who uses a plan decides which requests count for the number. The verb of a
// call to something that is not an API server is "call", and its target is any text.
package plan

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Plan is a list of hits, which are independent of each other.
type Plan []Hit

// Hit is a fault at a place.
type Hit struct {
	Fault string
	Place Place
}

// Place is a request of a program, or all requests that have the same name.
type Place struct {
	Program string // empty for every program
	Verb    string // an API verb, or "call"
	Target  string
	Number  int // 1 for the first such request of the program, 0 for all
}

// String returns the place as it is in a plan line.
func (p Place) String() string {
	var b strings.Builder
	if p.Program != "" {
		b.WriteString(p.Program + ": ")
	}
	b.WriteString(strings.TrimSpace(p.Verb + " " + p.Target))
	if p.Number > 0 {
		b.WriteString(" #" + strconv.Itoa(p.Number))
	}
	return b.String()
}

// Covers reports whether request is one of the requests that p stands for.
func (p Place) Covers(request Place) bool {
	return (p.Program == "" || p.Program == request.Program) && p.Verb == request.Verb && p.Target == request.Target &&
		(p.Number == 0 || p.Number == request.Number)
}

// String returns the hit as it is in a plan line.
func (h Hit) String() string { return h.Fault + " @ " + h.Place.String() }

// String returns the plan as one line.
func (p Plan) String() string {
	hits := make([]string, len(p))
	for i, h := range p {
		hits[i] = h.String()
	}
	return strings.Join(hits, " + ")
}

// Parse is the inverse of Plan.String. An empty line is a plan without hits.
func Parse(line string) (Plan, error) {
	line = strings.Join(strings.Fields(line), " ")
	if line == "" {
		return nil, nil
	}
	var p Plan
	for text := range strings.SplitSeq(line, " + ") {
		h, err := parseHit(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("plan %q: %w", line, err)
		}
		p = append(p, h)
	}
	return p, nil
}

// numbered is a place with its number at the end.
var numbered = regexp.MustCompile(`^(.*\S) #([1-9][0-9]{0,8})$`)

func parseHit(text string) (Hit, error) {
	fault, place, ok := strings.Cut(text, " @ ")
	fault, place = strings.TrimSpace(fault), strings.TrimSpace(place)
	if !ok || fault == "" || place == "" {
		return Hit{}, fmt.Errorf("%q is not FAULT @ PLACE", text)
	}
	h := Hit{Fault: fault}
	if m := numbered.FindStringSubmatch(place); m != nil {
		place = m[1]
		h.Place.Number, _ = strconv.Atoi(m[2]) // nine digits at most
	}
	if program, rest, ok := strings.Cut(place, ": "); ok {
		h.Place.Program, place = strings.TrimSpace(program), strings.TrimSpace(rest)
	}
	words := strings.Fields(place)
	if len(words) == 0 || strings.HasSuffix(words[0], ":") {
		return Hit{}, fmt.Errorf("%q has no verb", text)
	}
	for _, w := range strings.Fields(text[strings.Index(text, " @ ")+3:]) {
		if w == "@" || w == "+" {
			return Hit{}, fmt.Errorf("%q has a separator at a wrong place", text)
		}
	}
	h.Place.Verb, h.Place.Target = words[0], strings.Join(words[1:], " ")
	return h, nil
}

// Clean returns text without the separators of the grammar.
func Clean(text string) string {
	return strings.Join(strings.Fields(strings.NewReplacer("@", "(at)", "+", "(and)", "#", "(no)", ": ", " ").Replace(text)), " ")
}
