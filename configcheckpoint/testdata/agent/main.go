// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Command agent is the smallest agent with a source, a trial and a roll-back. A test measures
// what it links.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"

	"github.com/kubewright/kubewright/configcheckpoint"
)

type settings struct {
	Greeting string `json:"greeting"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1], os.Args[2])
	fmt.Fprintln(os.Stderr, err)
	if errors.Is(err, configcheckpoint.ErrRestart) {
		os.Exit(75)
	}
}

func run(ctx context.Context, dir, url string) error {
	source, err := configcheckpoint.HTTP(&http.Client{}, url, 0)
	if err != nil {
		return err
	}
	controller, err := configcheckpoint.New(configcheckpoint.Config[settings]{
		Dir: dir,
		Codec: configcheckpoint.Codec[settings]{
			Decode:  func(data []byte) (s settings, err error) { return s, json.Unmarshal(data, &s) },
			Default: func() (settings, error) { return settings{}, nil },
		},
		Source: source,
		Trial:  configcheckpoint.Trial{Health: func(context.Context) error { return nil }},
	})
	if err != nil {
		return err
	}
	active, err := controller.Boot(ctx)
	if err != nil {
		return err
	}
	fmt.Println(active.Config.Greeting)
	err = controller.Run(ctx)
	return errors.Join(err, controller.Close(nil))
}
