// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint"
)

// httpSource polls a server. With its ETag, an unchanged configuration costs an answer
// without a body.
func httpSource(client *http.Client, url string, every time.Duration) configcheckpoint.Source {
	return configcheckpoint.SourceFunc(func(ctx context.Context) iter.Seq2[configcheckpoint.Payload, error] {
		return func(yield func(configcheckpoint.Payload, error) bool) {
			etag := ""
			for ctx.Err() == nil {
				payload, changed, err := fetch(ctx, client, url, etag)
				if err != nil || changed {
					if !yield(payload, err) {
						return
					}
				}
				if changed {
					etag = payload.Version
				}
				select {
				case <-time.After(every):
				case <-ctx.Done():
				}
			}
		}
	})
}

// fetch reads the configuration if it has another ETag. Only a whole body with status
// 200 is one: the error page of a proxy is not.
func fetch(ctx context.Context, client *http.Client, url, etag string) (payload configcheckpoint.Payload, changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return payload, false, err
	}
	if etag != "" {
		req.Header.Set("If-None-Match", etag)
	}
	resp, err := client.Do(req)
	if err != nil {
		return payload, false, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusNotModified:
		return payload, false, nil
	case http.StatusNotFound:
		return payload, false, fmt.Errorf("%w: %s", configcheckpoint.ErrSourceNotFound, url)
	case http.StatusOK:
	default:
		return payload, false, fmt.Errorf("%s: %s", url, resp.Status)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, configcheckpoint.MaxPayloadSize+1))
	return configcheckpoint.Payload{Data: data, Name: url, Version: resp.Header.Get("ETag")}, err == nil, err
}

// A source that reads from an HTTP server.
func Example_http() {
	config, answers := "level: info", 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers++
		switch {
		case answers == 2:
			http.Error(w, "try again", http.StatusBadGateway)
			return
		case answers == 4:
			config = "level: debug"
		}
		w.Header().Set("ETag", fmt.Sprintf("%q", strings.TrimPrefix(config, "level: ")))
		http.ServeContent(w, r, "config", time.Time{}, strings.NewReader(config))
	}))
	defer server.Close()
	for p, err := range httpSource(server.Client(), server.URL, time.Millisecond).Payloads(context.Background()) {
		if err != nil {
			fmt.Println("error:", strings.TrimPrefix(err.Error(), server.URL+": "))
			continue
		}
		fmt.Printf("%s, version %s, after %d answers\n", p.Data, p.Version, answers)
		if answers == 4 {
			break
		}
	}
	// Output:
	// level: info, version "info", after 1 answers
	// error: 502 Bad Gateway
	// level: debug, version "debug", after 4 answers
}
