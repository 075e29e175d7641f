// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package record records which functions call which, in packages that hack/walk has
// rewritten so that each of their functions calls [Enter] first.
package record

import (
	"encoding/json"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// Variable is the environment variable with the name of the file that trips are added
// to. Without it nothing is recorded.
const Variable = "KUBEWRIGHT_WALK"

// Module is the path of the module whose packages are recorded.
const Module = "github.com/kubewright/kubewright/"

// A Place is a function in a file.
type Place struct {
	Package  string // without the path of the module
	File     string
	Function string
}

// A Call is a call of a function. From is the innermost function of a recorded package
// that was running, or the zero Place: the call came from outside, or a goroutine began.
type Call struct{ From, To Place }

// A Trip has each call that was made on it once, in no particular order. Room is the
// package that it leads through.
type Trip struct {
	Name, Room string
	Calls      []Call
}

var (
	mu    sync.Mutex
	calls map[Call]bool // nil: no trip
)

// T is the part of *testing.T that Walk uses.
type T interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// Walk calls f and records what it and other goroutines call in the meantime. It adds
// the trip to the file that [Variable] names. A trip without a call fails t.
func Walk(t T, name, room string, f func()) {
	t.Helper()
	file := os.Getenv(Variable)
	if file == "" {
		f()
		return
	}
	set(map[Call]bool{})
	f()
	trip := Trip{Name: name, Room: room}
	for c := range set(nil) {
		trip.Calls = append(trip.Calls, c)
	}
	if len(trip.Calls) == 0 {
		t.Fatalf("%s: no call was recorded", name)
	}
	line, err := json.Marshal(trip)
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

func set(next map[Call]bool) (last map[Call]bool) {
	mu.Lock()
	defer mu.Unlock()
	last, calls = calls, next
	return last
}

// depth is the number of frames that are searched for the caller. Between two
// functions of a controller stand those of client-go, net/http and the like.
const depth = 48

// Enter records that its caller was called.
func Enter() {
	mu.Lock()
	defer mu.Unlock()
	if calls == nil {
		return
	}
	var counters [depth]uintptr
	frames := runtime.CallersFrames(counters[:runtime.Callers(2, counters[:])])
	frame, more := frames.Next()
	call := Call{To: placeOf(frame)}
	for more && call.From == (Place{}) {
		frame, more = frames.Next()
		if p := placeOf(frame); Recorded(p.Package) && !strings.HasSuffix(p.File, "_test.go") {
			call.From = p
		}
	}
	calls[call] = true
}

func placeOf(f runtime.Frame) Place {
	pkg, function := f.Function, ""
	slash := strings.LastIndex(pkg, "/") + 1
	if dot := strings.Index(pkg[slash:], "."); dot >= 0 {
		pkg, function = pkg[:slash+dot], pkg[slash+dot+1:]
	}
	inside, ok := strings.CutPrefix(pkg, Module)
	if !ok {
		inside = ""
	}
	return Place{Package: inside, File: path.Base(f.File), Function: function}
}

// notRecorded are the packages that drive a trip or stand for the world around it.
var notRecorded = []string{"apitest", "hack", "test", "examples"}

// Recorded reports whether calls to functions of the package are recorded. The path is
// that of the package inside the module.
func Recorded(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	return pkg != "" && !slices.Contains(notRecorded, first) && !strings.HasSuffix(pkg, "test")
}
