// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// countedFile returns a ReadFile with one content for all files.
func countedFile(data string, reads *int) func(context.Context, *corev1.Pod, string, string) ([]byte, error) {
	return func(context.Context, *corev1.Pod, string, string) ([]byte, error) {
		*reads++
		return []byte(data), nil
	}
}

// TestAnEnvFileIsReadOnceForAllVariables: an init container can make it as large as it is allowed,
// and a pod can have thousands of variables.
func TestAnEnvFileIsReadOnceForAllVariables(t *testing.T) {
	for _, n := range []int{1, 100, 5000} {
		w, reads := filesOf(t, "K0='a'\n\n#\nK1='b'\nK2='c'\nK0='d'\n")
		env, err := w.pod(podOf(fileVars(n, 1))).Container(t.Context(), "c", Addresses{})
		if err != nil || len(env.Vars) != n || *reads != 1 {
			t.Fatalf("%d variables, %d reads, %v, want %d variables and 1 read", len(env.Vars), *reads, err, n)
		}
		for i, v := range env.Vars {
			if want := string("abc"[i%3]); v.Value != want {
				t.Errorf("%s is %q, want %q", v.Name, v.Value, want)
			}
		}
	}
}

// TestAKeyThatComesAfterABrokenLineIsAnError, and one before it is not.
func TestAKeyThatComesAfterABrokenLineIsAnError(t *testing.T) {
	w, _ := filesOf(t, "K0='a'\nbroken\nK1='b'\n")
	if env, err := w.pod(podOf(fileVars(1, 1))).Container(t.Context(), "c", Addresses{}); err != nil || env.Vars[0].Value != "a" {
		t.Errorf("%v, %v", env.Vars, err)
	}
	if _, err := w.pod(podOf(fileVars(2, 1))).Container(t.Context(), "c", Addresses{}); err == nil || !strings.Contains(err.Error(), "line 2") || !CanWait(err) {
		t.Errorf("%v, want an error of line 2 that may pass", err)
	}
}

// TestTheSizeOfEnvFilesIsLimited: that of one file, and that of all files of a container.
func TestTheSizeOfEnvFilesIsLimited(t *testing.T) {
	full := "K0='a'\nK1='b'\nK2='c'\n" + strings.Repeat("#", maxEnvFile-21)
	for name, tc := range map[string]struct {
		data  string
		files int
		reads int
		fails string
	}{
		"the largest file":       {full, 1, 1, ""},
		"one byte more":          {full + "#", 1, 1, "more than 1048576 bytes"},
		"some of the largest":    {full, 7, 7, ""},
		"too many of them":       {full, 300, 8, "that are allowed"},
		"an empty file of a key": {"", 1, 1, ErrMissing.Error()},
	} {
		w, reads := filesOf(t, tc.data)
		_, err := w.pod(podOf(fileVars(tc.files, tc.files))).Container(t.Context(), "c", Addresses{})
		if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) || *reads > tc.reads {
			t.Errorf("%s: %v after %d reads, want %q after %d", name, err, *reads, tc.fails, tc.reads)
		}
	}
}

// TestACanceledContainerIsAnError also if nothing of it needs a request.
func TestACanceledContainerIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	reads := 0
	w := newWorld(t, func(cfg *Config) {
		cfg.ReadFile = func(context.Context, *corev1.Pod, string, string) ([]byte, error) {
			if reads++; reads == 3 {
				cancel()
			}
			return []byte("K0=''\nK1=''\nK2=''\n"), nil
		}
	})
	if _, err := w.pod(podOf(fileVars(100, 100))).Container(ctx, "c", Addresses{}); !errors.Is(err, context.Canceled) || reads != 3 {
		t.Errorf("%v after %d reads, want the error of the context after 3", err, reads)
	}
	p := w.pod(podOf(corev1.Container{Name: "c", Env: []corev1.EnvVar{value("A", "b")}}))
	if _, err := p.Container(ctx, "c", Addresses{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the error of the context", err)
	}
}
