// Command lab-cni is the lab cluster's network: on each node it writes a bridge configuration for
// the node's pod addresses, and routes to those of the other nodes. It is to the lab what a CNI's
// own DaemonSet is to a real cluster: what makes a node that has joined become Ready.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

const (
	version        = "rackwright-lab/cni 1"
	account        = "/var/run/secrets/kubernetes.io/serviceaccount"
	configuration  = "/etc/cni/net.d/10-lab.conflist"
	interval       = 10 * time.Second
	requestTimeout = 20 * time.Second
	// Marks our routes, so that those of nodes that are gone can be told from others'.
	routeProtocol = 244
)

type node struct {
	Metadata struct{ Name string }
	Spec     struct{ PodCIDR string }
	Status   struct {
		Addresses []struct{ Type, Address string }
	}
}

func (n node) address() string {
	for _, a := range n.Status.Addresses {
		if a.Type == "InternalIP" {
			return a.Address
		}
	}
	return ""
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		fmt.Println(version)
		return
	}
	log.SetFlags(0)
	log.Print(version)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	last := ""
	for ctx.Err() == nil {
		// The same error is worth one line, not one every interval.
		message := ""
		if err := once(ctx, os.Getenv("API_SERVER"), os.Getenv("NODE_NAME")); err != nil {
			message = err.Error()
		}
		if message != last {
			log.Print(message)
			last = message
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
}

func once(ctx context.Context, server, name string) error {
	nodes, err := list(ctx, server)
	if err != nil {
		return err
	}
	own, others, err := split(nodes, name)
	if err != nil {
		return err
	}
	if err := writeIfOther(configuration, conflist(own)); err != nil {
		return err
	}
	return route(others)
}

func list(ctx context.Context, server string) ([]node, error) {
	// Read anew each time: the kubelet renews the token.
	token, err := os.ReadFile(filepath.Join(account, "token"))
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(filepath.Join(account, "ca.crt"))
	if err != nil {
		return nil, err
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(pem) {
		return nil, errors.New("API server: want its certificate authority, have no certificate in ca.crt")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authorities}}
	defer transport.CloseIdleConnections()
	client := http.Client{Timeout: requestTimeout, Transport: transport}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/api/v1/nodes", nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("API server: want the nodes, have %s: %s", response.Status, body)
	}
	var answer struct{ Items []node }
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("API server: want the nodes, have %w", err)
	}
	return answer.Items, nil
}

// split gives the pod network of the node, and the gateways to those of the others.
func split(nodes []node, name string) (own string, others map[string]string, err error) {
	others = map[string]string{}
	for _, n := range nodes {
		switch {
		case n.Metadata.Name == name:
			own = n.Spec.PodCIDR
		case n.Spec.PodCIDR != "" && n.address() != "":
			others[n.Spec.PodCIDR] = n.address()
		}
	}
	if own == "" {
		return "", nil, fmt.Errorf("node %s: want a pod network from the controller manager, have none yet", name)
	}
	return own, others, nil
}

func conflist(podCIDR string) []byte {
	text, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       "rackwright-lab",
		"plugins": []any{map[string]any{
			"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
			"ipam": map[string]any{
				"type":   "host-local",
				"ranges": [][]map[string]string{{{"subnet": podCIDR}}},
				"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
			},
		}},
	}, "", "  ")
	if err != nil {
		panic(err) // maps and strings always marshal
	}
	return append(text, '\n')
}

// writeIfOther replaces the file in one step: the container runtime watches its folder.
func writeIfOther(path string, text []byte) error {
	if have, err := os.ReadFile(path); err == nil && string(have) == string(text) {
		return nil
	}
	scratch := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(scratch, text, 0o644); err != nil {
		return err
	}
	log.Printf("writing %s", path)
	return os.Rename(scratch, path)
}

func route(wanted map[string]string) error {
	filter := &netlink.Route{Protocol: routeProtocol}
	have, err := netlink.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("routes: want those to other nodes, have %w", err)
	}
	present := map[string]bool{}
	for _, r := range have {
		if r.Dst != nil && wanted[r.Dst.String()] == r.Gw.String() {
			present[r.Dst.String()] = true
		} else if err := netlink.RouteDel(&r); err != nil {
			return fmt.Errorf("routes: want %v gone, have %w", r.Dst, err)
		}
	}
	for network, gateway := range wanted {
		if present[network] {
			continue
		}
		_, destination, err := net.ParseCIDR(network)
		if err != nil {
			return err
		}
		err = netlink.RouteReplace(&netlink.Route{
			Dst: destination, Gw: net.ParseIP(gateway), Protocol: routeProtocol,
		})
		if err != nil {
			return fmt.Errorf("routes: want %s by %s, have %w", network, gateway, err)
		}
		log.Printf("routing %s by %s", network, gateway)
	}
	return nil
}
