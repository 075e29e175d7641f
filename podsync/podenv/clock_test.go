// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestATokenIsRenewedInTimeAfterTheClockWasSetRight makes a token while the clock of the machine
// is wrong, and sets the clock right before an observer looks again, which may be much later.
func TestATokenIsRenewedInTimeAfterTheClockWasSetRight(t *testing.T) {
	const asked = time.Hour
	issued := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, wrong := range []time.Duration{-48 * time.Hour, -2 * time.Hour, -10 * time.Minute, 0, 10 * time.Minute, 2 * time.Hour, 48 * time.Hour} {
		for _, life := range []time.Duration{asked, asked / 3, 24 * 365 * time.Hour} { // that the API server grants
			made := issued.Add(wrong)
			token := keptToken{"t", issued.Add(life), renewal(issued.Add(life), made, asked), made, asked}
			for _, pause := range []time.Duration{0, 15 * time.Minute, asked / 2, asked} {
				now := issued.Add(pause)
				for !token.isDue(now) {
					now = now.Add(time.Minute)
				}
				if late := now.Sub(issued.Add(pause)); late > 0 && (!now.Before(token.Expires) || now.Sub(issued) > asked) {
					t.Errorf("clock wrong by %v, life %v, pause %v: renewed after %v", wrong, life, pause, now.Sub(issued))
				}
				if wrong == 0 && pause == 0 && now.Sub(issued) < min(life, asked)*8/10 {
					t.Errorf("life %v: renewed after %v already, although the clock was right", life, now.Sub(issued))
				}
			}
		}
	}
}

// TestAStepOfTheClockRenewsATokenOnce: the clock is stepped while the process runs, or before the next
// one reads what is on disk. A bubble's clock can't be stepped, so the times of the token are.
func TestAStepOfTheClockRenewsATokenOnce(t *testing.T) {
	for _, by := range []time.Duration{-48 * time.Hour, 48 * time.Hour} {
		for _, restart := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w := memoryWorld(t)
				pod, memory := w.pod(everything()).pod, &Memory{}
				files, err := w.resolver.Recall(pod, memory).Volume(t.Context(), "v")
				if err != nil {
					t.Fatal(err)
				}
				first := string(files["token"].Data)
				for key, h := range memory.held {
					if token, ok := h.object.(*keptToken); ok {
						stepped := *token
						stepped.Made, stepped.Renew = token.Made.Add(-by), token.Renew.Add(-by)
						memory.keep(key, &held{&stepped})
					}
				}
				if restart {
					data, err := memory.Encode(flip{})
					if err != nil {
						t.Fatal(err)
					}
					if strings.Contains(string(data), first) {
						t.Error("the token is on disk as it is")
					}
					if memory, err = w.resolver.Remember(data, flip{}); err != nil {
						t.Fatal(err)
					}
				}
				var tokens []string
				for range 2 {
					files, err := w.resolver.Refresh(pod, memory).Volume(t.Context(), "v")
					if err != nil {
						t.Fatal(err)
					}
					tokens = append(tokens, string(files["token"].Data))
					time.Sleep(time.Minute)
				}
				if tokens[0] == first || tokens[0] != tokens[1] {
					t.Errorf("a step of %v, restart %v: tokens %q after %q: want a new one once", by, restart, tokens, first)
				}
				for key, h := range memory.held {
					if token, ok := h.object.(*keptToken); ok && token.Made.After(time.Now()) {
						t.Errorf("%v was not made again", key)
					}
				}
			})
		}
	}
}

// TestACertificateIsDueByTheClock: a clock before the moment at which it was stored is wrong.
func TestACertificateIsDueByTheClock(t *testing.T) {
	made := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	c := keptCertificate{made: made, renew: made.Add(time.Hour)}
	for after, want := range map[time.Duration]bool{-48 * time.Hour: true, -1: true, 0: false, time.Hour - 1: false, time.Hour: true, 48 * time.Hour: true} {
		if got := c.isDue(made.Add(after)); got != want {
			t.Errorf("%v after it was made: due %v, want %v", after, got, want)
		}
	}
}

// filesOf returns a resolver whose files have some content, and counts the reads.
func filesOf(t *testing.T, data string) (w *world, reads *int) {
	reads = new(int)
	return newWorld(t, func(cfg *Config) { cfg.ReadFile = countedFile(data, reads) }), reads
}

// fileVars returns a container of n variables of a file each, with names from the files.
func fileVars(n, files int) corev1.Container {
	c := corev1.Container{Name: "c"}
	for i := range n {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("V", i), ValueFrom: &corev1.EnvVarSource{
			FileKeyRef: &corev1.FileKeySelector{VolumeName: "v", Path: fmt.Sprint("f", i%files), Key: fmt.Sprint("K", i%3)}}})
	}
	return c
}
