// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"
)

// heartbeatClient is a client for leases and node status with its own
// connections: a large list does not delay a heartbeat, and a reset after a
// lost heartbeat does not end the watches of the process. It needs no timeout,
// because every call of the controllers has one.
type heartbeatClient struct {
	*kubernetes.Clientset
	dialer *connrotation.Dialer
}

// ResetConnections closes the connections of the client, so that the next
// request opens a new one.
func (c *heartbeatClient) ResetConnections() { c.dialer.CloseAll() }

func heartbeats(cfg *rest.Config) (*heartbeatClient, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	// client-go shares connections between equal configurations. The dialer
	// makes this configuration different.
	dialer := connrotation.NewDialer((&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext)
	cfg.Dial = dialer.DialContext
	client, err := kubernetes.NewForConfig(rest.AddUserAgent(cfg, cfg.UserAgent+"/heartbeat"))
	if err != nil {
		return nil, err
	}
	return &heartbeatClient{client, dialer}, nil
}
