// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"embed"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
)

// Versions are the versions of the API server of which there are recordings,
// newest first.
var Versions = []string{"v1.37.2", "v1.36.3", "v1.35.4", "v1.34.4"}

// wording lists by version the cases in which apitest words errors as the newest
// version does, or knows a field that only newer versions have. Of these cases
// everything is compared but messages, details and warnings of unknown fields.
var wording = map[string][]string{
	"v1.36.3": older,
	"v1.35.4": older,
	"v1.34.4": append([]string{"create-bodies", "node-status-checks"}, older...),
}

var older = []string{"apply-bad", "claims", "create-metadata", "node-fields", "patch-bad", "put-server-fields", "slice-limits"}

// withoutWording returns a transcript without the messages and details of errors, and
// without warnings of unknown fields.
func withoutWording(transcript string) string {
	var kept []string
	for line := range strings.SplitSeq(transcript, "\n") {
		if !slices.ContainsFunc([]string{"  message: ", "  details: ", `! 299 - "unknown field `}, func(start string) bool { return strings.HasPrefix(line, start) }) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

// Target is an API server to run the cases against.
type Target struct {
	// Version is the version of the server, one of Versions. Empty means the
	// newest.
	Version string
	// Real says that the server is kube-apiserver, whose answers must be those of the
	// recordings. The answers of apitest may differ as wording and known say.
	Real bool
	// Server returns the server for a case: a new one or always the same.
	// Required. It is called within the case.
	Server func(t *testing.T) Server
	// Isolate runs a case, for example in a synctest bubble. Nil calls it.
	Isolate func(t *testing.T, f func(t *testing.T))
	// Record receives the transcripts instead of comparing them.
	Record func(t *testing.T, name, transcript string)
	// Only, if not empty, are the names of the cases to run.
	Only []string
	// Except are the names of cases that are left out, visibly.
	Except []string
}

//go:embed testdata
var recordings embed.FS

// Recording returns the transcript of a case on the real server of a version.
// A version has a file of its own, in testdata/MINOR, if its transcript differs
// from that of the next newer version. The corpus has the differences only.
func Recording(version, name string) (string, error) {
	b, err := recordings.ReadFile("testdata/" + name + ".txt")
	transcript := string(b)
	for _, v := range Versions[1 : max(0, slices.Index(Versions, version))+1] {
		own, missing := recordings.ReadFile("testdata/" + minor(v) + "/" + name + ".txt")
		switch {
		case missing != nil:
		case name == corpus:
			if transcript, err = applyChanges(transcript, string(own)); err != nil {
				return "", err
			}
		default:
			transcript, err = string(own), nil
		}
	}
	return transcript, err
}

// File returns the file, relative to this package, for the transcript of a case
// on the server of a version, its content, and whether the version needs that file.
func File(version, name, transcript string) (path, content string, needed bool) {
	i := slices.Index(Versions, version)
	if i <= 0 {
		return "testdata/" + name + ".txt", transcript, true
	}
	newer, err := Recording(Versions[i-1], name)
	content = transcript
	if name == corpus && err == nil {
		content = changes(newer, transcript)
	}
	return "testdata/" + minor(version) + "/" + name + ".txt", content, err != nil || newer != transcript
}

// minor returns 1.36 for v1.36.3.
func minor(version string) string {
	return strings.TrimPrefix(version[:strings.LastIndex(version, ".")], "v")
}

// all returns every case. The cases may run in any order, once per server.
func all() []scenario {
	var list []scenario
	for _, part := range [][]scenario{
		objectCases, workloadCases, updateCases, patchCases, deleteCases, listCases, watchCases, encodingCases,
		nodeCases, podCases, podStatusCases, podSubresourceCases, identityCases, rbacCases, coordinationCases, eventCases, coreCases, sliceCases, discoveryCases,
		genericCases, applyCases, ruleCases, schemaCases, corpusCases,
	} {
		list = append(list, part...)
	}
	return list
}

// Run runs every case as a subtest.
func Run(t *testing.T, target Target) {
	isolate := target.Isolate
	if isolate == nil {
		isolate = func(t *testing.T, f func(*testing.T)) { f(t) }
	}
	version := cmp.Or(target.Version, Versions[0])
	for _, s := range all() {
		if len(target.Only) > 0 && !slices.Contains(target.Only, s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			if slices.Contains(target.Except, s.name) {
				t.Skip("left out")
			}
			if version != Versions[0] && slices.ContainsFunc(slices.Concat(ruleCases, schemaCases), func(r scenario) bool { return r.name == s.name }) {
				t.Skip("recorded of the newest version only")
			}
			transcript := ""
			isolate(t, func(t *testing.T) {
				c := newC(t, s.name, target.Server(t), target.Real)
				c.older = version != Versions[0]
				s.run(c)
				transcript = c.out.String()
			})
			if t.Failed() && target.Record == nil {
				t.Logf("transcript:\n%s", transcript)
				return
			}
			if target.Record != nil {
				target.Record(t, s.name, transcript)
				return
			}
			want, err := Recording(version, s.name)
			if errors.Is(err, fs.ErrNotExist) {
				t.Skip("there is no recording yet: test/e2e makes one with -update-conformance -only-conformance=" + s.name)
			}
			if err != nil {
				t.Fatal(err)
			}
			if !target.Real && slices.Contains(wording[version], s.name) {
				if want == transcript {
					t.Errorf("the errors are worded as by %s: remove the case from wording", version)
				}
				want, transcript = withoutWording(want), withoutWording(transcript)
			}
			if !target.Real && s.name == corpus {
				transcript = withoutKnown(t, version, want, transcript)
			}
			if d := difference(want, transcript); d != "" {
				t.Errorf("differs from the recording of the real server (-):\n%s", d)
			}
		})
	}
}

// difference returns the steps in which two transcripts differ.
func difference(want, got string) string {
	if want == got {
		return ""
	}
	a, b := steps(want), steps(got)
	var out strings.Builder
	for i := range max(len(a), len(b)) {
		var x, y []string
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if slices.Equal(x, y) {
			continue
		}
		if len(x) > 0 && len(y) > 0 && x[0] == y[0] {
			out.WriteString(x[0] + "\n")
		}
		only(&out, "- ", x, y)
		only(&out, "+ ", y, x)
		if len(x) == 0 || len(y) == 0 || x[0] != y[0] && !(x[0][0] == '#' && y[0][0] == '#') {
			break // the transcripts are out of step; later lines are meaningless
		}
	}
	return out.String()
}

// steps splits a transcript at the lines of requests, notes and events. Each
// step includes the lines that follow.
func steps(transcript string) (out [][]string) {
	for line := range strings.SplitSeq(strings.TrimSuffix(transcript, "\n"), "\n") {
		if len(out) == 0 || strings.ContainsAny(line[:1], ">#*") {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], line)
	}
	return out
}

func only(out *strings.Builder, mark string, lines, others []string) {
	for _, line := range lines {
		if !slices.Contains(others, line) {
			out.WriteString(mark + line + "\n")
		}
	}
}
