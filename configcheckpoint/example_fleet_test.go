// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint"
)

// Two images of an agent take turns, as a boot loader does with A and B. A configuration that
// image B can't read is rejected for B alone: B runs the last good one, and image A tries the
// new one.
func ExampleConfig_images() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "config.yaml")
	source, err := configcheckpoint.File(file, time.Millisecond)
	if err != nil {
		fmt.Println(err)
		return
	}
	process := func(image string) {
		settings := codec()
		if image == "B" {
			valid := settings.Validate
			settings.Validate = func(s Settings) error {
				if s.PollSeconds == 20 {
					return errors.New("image B can't poll each 20 s")
				}
				return valid(s)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		controller, err := configcheckpoint.New(configcheckpoint.Config[Settings]{
			Dir: filepath.Join(dir, "store"), Codec: settings, Source: source, Build: image,
			Hooks: configcheckpoint.Hooks{Rejected: func(configcheckpoint.Rejected) { cancel() }},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		active, err := controller.Boot(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		if active.Trial {
			err = controller.Verdict(nil)
		} else {
			err = controller.Run(ctx)
		}
		fmt.Printf("image %s: %d s, on trial: %t, then %s\n", image, active.Config.PollSeconds, active.Trial, controller.Status().Reason)
		if err != nil && !errors.Is(err, configcheckpoint.ErrRestart) {
			fmt.Println(err)
		}
		if err := controller.Close(nil); err != nil {
			fmt.Println(err)
		}
	}
	publish := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			fmt.Println(err)
		}
	}
	publish("pollSeconds: 10")
	process("A")
	process("A")
	publish("pollSeconds: 20")
	process("B")
	process("A")
	process("A")
	// Output:
	// image A: 60 s, on trial: false, then Staged
	// image A: 10 s, on trial: true, then Good
	// image B: 10 s, on trial: false, then ValidationFailed
	// image A: 10 s, on trial: false, then Staged
	// image A: 20 s, on trial: true, then Good
}

// What an operator sees of a fleet: each agent reports its Status as JSON when it changes, by
// whatever way its reports go. The reasons are few and stable, so that they can be counted.
func ExampleStatus() {
	report := func(node string, s configcheckpoint.Status) {
		text, err := json.Marshal(struct {
			Node string `json:"node"`
			configcheckpoint.Status
		}{node, s})
		fmt.Println(string(text), err)
	}
	report("edge-17", configcheckpoint.Status{
		Phase: configcheckpoint.PhaseTrial, Role: configcheckpoint.RoleAssigned,
		Active:  configcheckpoint.Ref{Digest: configcheckpoint.DigestOf([]byte("pollSeconds: 10")), Name: "https://config.example.com/agent.json"},
		Attempt: 1, Attempts: 3,
		OK: true, Reason: configcheckpoint.ReasonTrial, Message: "on trial, start 1 of 3",
		Since: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC),
	})
	// Output:
	// {"node":"edge-17","phase":"Trial","active":{"digest":"8ff314bdd80af7550814deff78d0f573b4ace8466efc17ddafa9169a9848152d","name":"https://config.example.com/agent.json"},"role":"Assigned","attempt":1,"attempts":3,"ok":true,"reason":"Trial","message":"on trial, start 1 of 3","since":"2026-11-28T12:00:00Z"} <nil>
}
