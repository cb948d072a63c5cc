package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func nodes(t *testing.T, text string) []node {
	t.Helper()
	var all []node
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

const two = `[
  {"metadata": {"name": "a"}, "spec": {"podCIDR": "10.244.0.0/24"},
   "status": {"addresses": [{"type": "InternalIP", "address": "10.88.0.11"}]}},
  {"metadata": {"name": "b"}, "spec": {"podCIDR": "10.244.1.0/24"},
   "status": {"addresses": [{"type": "Hostname", "address": "b"},
                            {"type": "InternalIP", "address": "10.88.0.12"}]}},
  {"metadata": {"name": "new"}, "spec": {}, "status": {}}
]`

func TestOwnNetworkAndGateways(t *testing.T) {
	own, others, err := split(nodes(t, two), "a")
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"10.244.1.0/24": "10.88.0.12"}; own != "10.244.0.0/24" ||
		!reflect.DeepEqual(others, want) {
		t.Errorf("have %s, %v", own, others)
	}
	for _, name := range []string{"new", "absent"} {
		if _, _, err := split(nodes(t, two), name); err == nil {
			t.Errorf("%s: want an error without a pod network, have none", name)
		}
	}
}

func TestConfigurationIsReplacedOnlyIfOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "10-lab.conflist")
	for _, network := range []string{"10.244.0.0/24", "10.244.1.0/24"} {
		if err := writeIfOther(path, conflist(network)); err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(path)
		if err != nil || string(have) != string(conflist(network)) {
			t.Errorf("have %s, %v", have, err)
		}
	}
	before, _ := os.Stat(path)
	if err := writeIfOther(path, conflist("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(path); !os.SameFile(before, after) {
		t.Error("want the file left alone, have it written again")
	}
}
