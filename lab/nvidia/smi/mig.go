// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

type migOptions struct {
	id       string
	action   string
	profiles []string
	computes bool
	gi, ci   []uint32
}

var migActions = map[string]string{
	"-lgip": "lgip", "--list-gpu-instance-profiles": "lgip",
	"-lgipp": "lgipp", "--list-gpu-instance-possible-placements": "lgipp",
	"-lgi": "lgi", "--list-gpu-instances": "lgi",
	"-lci": "lci", "--list-compute-instances": "lci",
	"-lcip": "lcip", "--list-compute-instance-profiles": "lcip",
	"-cgi": "cgi", "--create-gpu-instance": "cgi",
	"-cci": "cci", "--create-compute-instance": "cci",
	"-dgi": "dgi", "--destroy-gpu-instance": "dgi",
	"-dci": "dci", "--destroy-compute-instance": "dci",
}

func parseMig(args []string) (*migOptions, error) {
	o := &migOptions{}
	bad := func(what string) error {
		return fail(exitBadArgument, "Invalid combination of input arguments (%s). Please run 'nvidia-smi mig -h' for help.", what)
	}
	for i := 0; i < len(args); i++ {
		name, value, inline := strings.Cut(args[i], "=")
		next := func() string {
			if !inline && i+1 < len(args) {
				i++
				value = args[i]
			}
			return value
		}
		if action, ok := migActions[name]; ok {
			if o.action != "" {
				return nil, bad(name)
			}
			o.action = action
			hasValue := inline || i+1 < len(args) && !strings.HasPrefix(args[i+1], "-")
			if (action == "cgi" || action == "cci") && hasValue {
				o.profiles = strings.Split(next(), ",")
			}
			if action == "cgi" && len(o.profiles) == 0 {
				return nil, bad("-cgi without profiles")
			}
			continue
		}
		var err error
		switch name {
		case "-i", "--id":
			o.id = next()
		case "-gi", "--gpu-instance-id":
			o.gi, err = ids(next())
		case "-ci", "--compute-instance-id":
			o.ci, err = ids(next())
		case "-C", "--default-compute-instance":
			o.computes = true
		case "-h", "--help":
			return nil, fail(0, usage, version)
		default:
			err = bad(name)
		}
		if err != nil {
			return nil, err
		}
	}
	if o.action == "" {
		return nil, bad("no action")
	}
	return o, nil
}

func ids(text string) ([]uint32, error) {
	var out []uint32
	for _, one := range strings.Split(text, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(one), 10, 32)
		if err != nil {
			return nil, fail(exitBadArgument, "Invalid instance ID: %q", one)
		}
		out = append(out, uint32(n))
	}
	return out, nil
}

func chosen(filter []uint32, id uint32) bool {
	return len(filter) == 0 || slices.Contains(filter, id)
}

func (o *migOptions) run() error {
	all, err := gpus(o.id)
	if err != nil {
		return err
	}
	var on []gpu
	for _, g := range all {
		if current, _, rc := g.GetMigMode(); rc == nvml.SUCCESS && current == nvml.DEVICE_MIG_ENABLE {
			on = append(on, g)
		}
	}
	if len(on) == 0 {
		return fail(exitNotFound, "No MIG-enabled devices found.")
	}
	switch o.action {
	case "lgip":
		return listProfiles(on)
	case "lgipp":
		return listPlacements(on)
	case "lgi":
		return o.listGpuInstances(on)
	case "lci":
		return o.listComputeInstances(on)
	case "lcip":
		return o.listComputeProfiles(on)
	}
	// Whatever changes something is for root; NVIDIA's says so once, before trying.
	if os.Geteuid() != 0 {
		return fail(int(nvml.ERROR_NO_PERMISSION), "Insufficient Permissions")
	}
	switch o.action {
	case "cgi":
		return o.createGpuInstances(on)
	case "cci":
		return o.createComputeInstances(on)
	case "dci":
		return o.destroyComputeInstances(on)
	}
	return o.destroyGpuInstances(on)
}

type profile struct {
	nvml.GpuInstanceProfileInfo_v2
	name string
}

func profiles(g gpu) []profile {
	var found []profile
	for i := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		if info, rc := g.GetGpuInstanceProfileInfoV(i).V2(); rc == nvml.SUCCESS {
			found = append(found, profile{info, text(info.Name[:])})
		}
	}
	// NVIDIA's lists small ones first, a plain one before its variants.
	order := func(p profile) int { return int(p.SliceCount)*1000000 + int(p.MemorySizeMB) }
	sort.SliceStable(found, func(a, b int) bool { return order(found[a]) < order(found[b]) })
	return found
}

func profileByID(g gpu, id uint32) profile {
	for _, p := range profiles(g) {
		if p.Id == id {
			return p
		}
	}
	return profile{name: "MIG unknown"}
}

func listProfiles(on []gpu) error {
	rule := "+" + strings.Repeat("-", 77) + "+"
	fmt.Println(rule)
	fmt.Println("| GPU instance profiles:                                                      |")
	fmt.Println("| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |")
	fmt.Println("|                              Free/Total   GiB              CE    JPEG  OFA  |")
	fmt.Println("|=============================================================================|")
	for _, g := range on {
		for _, p := range profiles(g) {
			free, _ := g.GetGpuInstanceRemainingCapacity(p.v1())
			fmt.Printf("| %3d  %-16s%4d%6d/%d        %-11.2fNo%7d%6d%6d   |\n", g.index, p.name, p.Id, free, p.InstanceCount,
				float64(p.MemorySizeMB)/1024, p.MultiprocessorCount, p.DecoderCount, p.EncoderCount)
			fmt.Printf("|%62d%6d%6d   |\n", p.CopyEngineCount, p.JpegCount, p.OfaCount)
			fmt.Println(rule)
		}
	}
	return nil
}

// v1 is what go-nvml takes where NVML wants no more than the id.
func (p profile) v1() *nvml.GpuInstanceProfileInfo {
	return &nvml.GpuInstanceProfileInfo{Id: p.Id, SliceCount: p.SliceCount, InstanceCount: p.InstanceCount}
}

func listPlacements(on []gpu) error {
	for _, g := range on {
		for _, p := range profiles(g) {
			places, rc := g.GetGpuInstancePossiblePlacements(p.v1())
			if rc != nvml.SUCCESS || len(places) == 0 {
				continue
			}
			var starts []string
			for _, place := range places {
				starts = append(starts, fmt.Sprint(place.Start))
			}
			word := "Placements"
			if len(starts) == 1 {
				word = "Placement "
			}
			fmt.Printf("GPU %2d Profile ID %2d %s: {%s}:%d\n", g.index, p.Id, word, strings.Join(starts, ","), places[0].Size)
		}
	}
	return nil
}

type gpuInstance struct {
	nvml.GpuInstance
	info    nvml.GpuInstanceInfo
	profile profile
}

func gpuInstances(g gpu, filter []uint32) []gpuInstance {
	var found []gpuInstance
	for _, p := range profiles(g) {
		instances, rc := g.GetGpuInstances(p.v1())
		if rc != nvml.SUCCESS {
			continue
		}
		for _, gi := range instances {
			if info, rc := gi.GetInfo(); rc == nvml.SUCCESS && chosen(filter, info.Id) {
				found = append(found, gpuInstance{gi, info, p})
			}
		}
	}
	sort.SliceStable(found, func(a, b int) bool { return found[a].info.Id < found[b].info.Id })
	return found
}

type computeProfile struct {
	nvml.ComputeInstanceProfileInfo_v2
	index int
	name  string
}

func (p computeProfile) v1() *nvml.ComputeInstanceProfileInfo {
	return &nvml.ComputeInstanceProfileInfo{Id: p.Id, SliceCount: p.SliceCount, InstanceCount: p.InstanceCount}
}

func computeProfiles(gi gpuInstance) []computeProfile {
	var found []computeProfile
	for i := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		if info, rc := gi.GetComputeInstanceProfileInfoV(i, 0).V2(); rc == nvml.SUCCESS {
			found = append(found, computeProfile{info, i, text(info.Name[:])})
		}
	}
	return found
}

type computeInstance struct {
	nvml.ComputeInstance
	info    nvml.ComputeInstanceInfo
	profile computeProfile
}

func computeInstances(gi gpuInstance, filter []uint32) []computeInstance {
	var found []computeInstance
	for _, p := range computeProfiles(gi) {
		instances, rc := gi.GetComputeInstances(p.v1())
		if rc != nvml.SUCCESS {
			continue
		}
		for _, ci := range instances {
			if info, rc := ci.GetInfo(); rc == nvml.SUCCESS && chosen(filter, info.Id) {
				found = append(found, computeInstance{ci, info, p})
			}
		}
	}
	sort.SliceStable(found, func(a, b int) bool { return found[a].info.Id < found[b].info.Id })
	return found
}

func (o *migOptions) listGpuInstances(on []gpu) error {
	var rows []string
	for _, g := range on {
		for _, gi := range gpuInstances(g, o.gi) {
			rows = append(rows, fmt.Sprintf("| %3d  %-17s %4d     %4d     %6d:%d     |", g.index, gi.profile.name, gi.profile.Id,
				gi.info.Id, gi.info.Placement.Start, gi.info.Placement.Size))
		}
	}
	if len(rows) == 0 {
		return fail(exitNotFound, "No GPU instances found: Not Found")
	}
	rule := "+" + strings.Repeat("-", 55) + "+"
	fmt.Println(rule)
	fmt.Println("| GPU instances:                                        |")
	fmt.Println("| GPU   Name             Profile  Instance   Placement  |")
	fmt.Println("|                          ID       ID       Start:Size |")
	fmt.Println("|=======================================================|")
	for _, row := range rows {
		fmt.Println(row)
		fmt.Println(rule)
	}
	return nil
}

func (o *migOptions) listComputeInstances(on []gpu) error {
	var rows []string
	for _, g := range on {
		for _, gi := range gpuInstances(g, o.gi) {
			for _, ci := range computeInstances(gi, o.ci) {
				rows = append(rows, fmt.Sprintf("| %3d   %4d       %-17s %4d      %4d     %6d:%d     |", g.index, gi.info.Id,
					ci.profile.name, ci.profile.Id, ci.info.Id, ci.info.Placement.Start, ci.info.Placement.Size))
			}
		}
	}
	if len(rows) == 0 {
		return fail(exitNotFound, "No compute instances found: Not Found")
	}
	rule := "+" + strings.Repeat("-", 68) + "+"
	fmt.Println(rule)
	fmt.Println("| Compute instances:                                                 |")
	fmt.Println("| GPU     GPU       Name             Profile   Instance   Placement  |")
	fmt.Println("|       Instance                       ID        ID       Start:Size |")
	fmt.Println("|         ID                                                         |")
	fmt.Println("|====================================================================|")
	for _, row := range rows {
		fmt.Println(row)
		fmt.Println(rule)
	}
	return nil
}

func (o *migOptions) listComputeProfiles(on []gpu) error {
	any := false
	for _, g := range on {
		for _, gi := range gpuInstances(g, o.gi) {
			for _, p := range computeProfiles(gi) {
				free, _ := gi.GetComputeInstanceRemainingCapacity(p.v1())
				fmt.Printf("GPU %2d GPU instance ID %2d Profile ID %2d %-18s Free/Total %d/%d\n", g.index, gi.info.Id, p.Id, p.name, free,
					p.InstanceCount)
				any = true
			}
		}
	}
	if !any {
		return fail(exitNotFound, "No GPU instances found: Not Found")
	}
	return nil
}

// find takes an ID, a name or a name without "MIG ", each with an optional ":start".
func find(g gpu, wanted string) (p profile, start int, ok bool) {
	name, place, placed := strings.Cut(strings.TrimSpace(wanted), ":")
	start = -1
	if placed {
		n, err := strconv.Atoi(place)
		if err != nil {
			return p, start, false
		}
		start = n
	}
	name = strings.TrimPrefix(name, "MIG ")
	for _, p := range profiles(g) {
		if name == fmt.Sprint(p.Id) || name == strings.TrimPrefix(p.name, "MIG ") {
			return p, start, true
		}
	}
	return p, start, false
}

func (o *migOptions) createGpuInstances(on []gpu) error {
	for _, g := range on {
		for _, wanted := range o.profiles {
			p, start, ok := find(g, wanted)
			if !ok {
				return failed("create GPU instances", nvml.ERROR_INVALID_ARGUMENT,
					"Unable to create a GPU instance on GPU %2d using profile %s", g.index, strings.TrimSpace(wanted))
			}
			info := p.v1()
			var gi nvml.GpuInstance
			var rc nvml.Return
			if start >= 0 {
				places, _ := g.GetGpuInstancePossiblePlacements(info)
				place := nvml.GpuInstancePlacement{Start: uint32(start)}
				if len(places) > 0 {
					place.Size = places[0].Size
				}
				gi, rc = g.CreateGpuInstanceWithPlacement(info, &place)
			} else {
				gi, rc = g.CreateGpuInstance(info)
			}
			if rc != nvml.SUCCESS {
				return failed("create GPU instances", rc, "Unable to create a GPU instance on GPU %2d using profile %d", g.index, p.Id)
			}
			made, rc := gi.GetInfo()
			if rc != nvml.SUCCESS {
				return failed("create GPU instances", rc, "Unable to query the new GPU instance on GPU %2d", g.index)
			}
			fmt.Printf("Successfully created GPU instance ID %2d on GPU %2d using profile %s (ID %2d)\n", made.Id, g.index, p.name, p.Id)
			if o.computes {
				if err := createDefault(g, gpuInstance{gi, made, p}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// The default compute instance has all of the GPU instance.
func createDefault(g gpu, gi gpuInstance) error {
	for _, p := range computeProfiles(gi) {
		if p.SliceCount == gi.profile.SliceCount {
			return createCompute(g, gi, p)
		}
	}
	return failed("create compute instances", nvml.ERROR_NOT_SUPPORTED,
		"Unable to create a compute instance on GPU %2d GPU instance ID %2d", g.index, gi.info.Id)
}

func createCompute(g gpu, gi gpuInstance, p computeProfile) error {
	ci, rc := gi.CreateComputeInstance(p.v1())
	if rc != nvml.SUCCESS {
		return failed("create compute instances", rc, "Unable to create a compute instance on GPU %2d GPU instance ID %2d using profile %d",
			g.index, gi.info.Id, p.Id)
	}
	made, rc := ci.GetInfo()
	if rc != nvml.SUCCESS {
		return failed("create compute instances", rc, "Unable to query the new compute instance on GPU %2d", g.index)
	}
	fmt.Printf("Successfully created compute instance ID %2d on GPU %2d GPU instance ID %2d using profile %s (ID %2d)\n", made.Id, g.index,
		gi.info.Id, p.name, p.Id)
	return nil
}

func (o *migOptions) createComputeInstances(on []gpu) error {
	any := false
	for _, g := range on {
		for _, gi := range gpuInstances(g, o.gi) {
			any = true
			if len(o.profiles) == 0 {
				if err := createDefault(g, gi); err != nil {
					return err
				}
				continue
			}
			for _, wanted := range o.profiles {
				name := strings.TrimPrefix(strings.TrimSpace(wanted), "MIG ")
				found := false
				for _, p := range computeProfiles(gi) {
					if name != fmt.Sprint(p.Id) && name != strings.TrimPrefix(p.name, "MIG ") {
						continue
					}
					found = true
					if err := createCompute(g, gi, p); err != nil {
						return err
					}
					break
				}
				if !found {
					return failed("create compute instances", nvml.ERROR_INVALID_ARGUMENT,
						"Unable to create a compute instance on GPU %2d GPU instance ID %2d using profile %s", g.index, gi.info.Id, name)
				}
			}
		}
	}
	if !any {
		return fail(exitNotFound, "No GPU instances found: Not Found")
	}
	return nil
}

func (o *migOptions) destroyComputeInstances(on []gpu) error {
	any := false
	for _, g := range on {
		for _, gi := range gpuInstances(g, o.gi) {
			for _, ci := range computeInstances(gi, o.ci) {
				any = true
				if rc := ci.Destroy(); rc != nvml.SUCCESS {
					return failed("destroy compute instances", rc,
						"Unable to destroy compute instance ID %2d from GPU %2d GPU instance ID %2d", ci.info.Id, g.index, gi.info.Id)
				}
				fmt.Printf("Successfully destroyed compute instance ID %2d from GPU %2d GPU instance ID %2d\n", ci.info.Id, g.index, gi.info.Id)
			}
		}
	}
	if !any {
		return fail(exitNotFound, "No compute instances found: Not Found")
	}
	return nil
}

func (o *migOptions) destroyGpuInstances(on []gpu) error {
	any := false
	for _, g := range on {
		for _, gi := range gpuInstances(g, o.gi) {
			any = true
			if rc := gi.Destroy(); rc != nvml.SUCCESS {
				return failed("destroy GPU instances", rc, "Unable to destroy GPU instance ID %2d from GPU %2d", gi.info.Id, g.index)
			}
			fmt.Printf("Successfully destroyed GPU instance ID %2d from GPU %2d\n", gi.info.Id, g.index)
		}
	}
	if !any {
		return fail(exitNotFound, "No GPU instances found: Not Found")
	}
	return nil
}

func failed(what string, rc nvml.Return, format string, args ...any) error {
	return fail(int(rc), "%s: %v\nFailed to %s: %v", fmt.Sprintf(format, args...), nvml.ErrorString(rc), what, nvml.ErrorString(rc))
}
