// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"strings"
	"time"

	"github.com/kubewright/kubewright/apitest/internal/plan"
)

// Lines of the journals in a story, and the width of one.
const (
	before = 3
	after  = 32
	width  = 74
)

// story describes a run, with its journal next to that of the reference: lines of it from
// the first difference on.
func (l *lab) story(p plan.Plan, out *outcome, lines int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "plan: %s\n", p)
	for _, problem := range out.problems {
		fmt.Fprintf(&b, "problem: %s\n", strings.ReplaceAll(problem, "\n", "\n    "))
	}
	if out.missed {
		b.WriteString("a place of the plan was not reached, or its fault had no effect\n")
	}
	ref, run := folded(l.ref.journal), folded(out.journal)
	same := 0
	for same < len(ref) && same < len(run) && ref[same].line() == run[same].line() {
		same++
	}
	from := max(0, same-before)
	fmt.Fprintf(&b, "%-*s | %s\n", width, "the run, from the first difference", "the reference")
	for i := from; i < from+lines && (i < len(run) || i < len(ref)); i++ {
		fmt.Fprintf(&b, "%-*s | %s\n", width, column(run, i), column(ref, i))
	}
	for i := from + lines; i < len(run); i++ { // the notes of the rest
		if run[i].program == "" {
			fmt.Fprintf(&b, "%s\n", column(run, i))
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// folded returns a journal with repeated lines as one.
func folded(journal []*entry) (out []entry) {
	times := 1
	for i, e := range journal {
		if i > 0 && e.line() == journal[i-1].line() {
			times++
			out[len(out)-1].times = times
			continue
		}
		times = 1
		out = append(out, *e)
	}
	return out
}

func column(journal []entry, i int) string {
	if i >= len(journal) {
		return ""
	}
	e := journal[i]
	text := fmt.Sprintf("%9s %s", e.at.Round(time.Millisecond), e.line())
	if e.times > 1 {
		text += fmt.Sprintf(" (%d times)", e.times)
	}
	if len(text) > width && e.program != "" {
		text = text[:width-3] + "..."
	}
	return text
}
