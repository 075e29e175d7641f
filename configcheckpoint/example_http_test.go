// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint"
)

// The configuration comes from an HTTP server. With its entity tag, an unchanged one costs an
// answer without a body.
func ExampleHTTP() {
	config, answers := "level: info", 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answers++; answers == 4 {
			config = "level: debug"
		}
		w.Header().Set("ETag", fmt.Sprintf("%q", strings.TrimPrefix(config, "level: ")))
		http.ServeContent(w, r, "config", time.Time{}, strings.NewReader(config))
	}))
	defer server.Close()
	source, err := configcheckpoint.HTTP(server.Client(), server.URL, time.Millisecond)
	if err != nil {
		fmt.Println(err)
		return
	}
	for p, err := range source.Payloads(context.Background()) {
		fmt.Printf("%s, version %s, after %d answers, %v\n", p.Data, p.Version, answers, err)
		if answers == 4 {
			break
		}
	}
	// Output:
	// level: info, version "info", after 1 answers, <nil>
	// level: debug, version "debug", after 4 answers, <nil>
}

// A payload is a candidate only if it is signed: the first 64 bytes are the Ed25519 signature
// of the rest. The agent has the public key; Codec.Decode skips the signature.
func ExampleConfig_admit() {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	admit := func(_ context.Context, p configcheckpoint.Payload) (time.Duration, error) {
		if len(p.Data) < ed25519.SignatureSize || !ed25519.Verify(public, p.Data[ed25519.SignatureSize:], p.Data[:ed25519.SignatureSize]) {
			return 0, fmt.Errorf("%w: the signature is not valid", configcheckpoint.ErrRefused)
		}
		return 0, nil
	}
	signed := append(ed25519.Sign(private, []byte("pollSeconds: 10")), "pollSeconds: 10"...)
	forged := append(signed[:ed25519.SignatureSize:ed25519.SignatureSize], "pollSeconds: 1"...)
	for _, data := range [][]byte{signed, forged, []byte("pollSeconds: 10")} {
		_, err := admit(context.Background(), configcheckpoint.Payload{Data: data})
		fmt.Println(err == nil, errors.Is(err, configcheckpoint.ErrRefused))
	}
	// Output:
	// true false
	// false true
	// false true
}
