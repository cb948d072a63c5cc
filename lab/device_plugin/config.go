package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
	"sigs.k8s.io/yaml"
)

// What upstream calls its strategies.
// Source: NVIDIA/k8s-device-plugin v0.20.0, README.md, "Configuration" (read 2026-11-30).
const (
	migNone   = "none"
	migSingle = "single"
	migMixed  = "mixed"

	listEnvvar       = "envvar"
	listVolumeMounts = "volume-mounts"

	idUUID  = "uuid"
	idIndex = "index"

	configVersion = "v1"
)

// config is the part of upstream's configuration that this stand-in honours. What it does not
// simulate (MPS, CDI lists) is refused, never ignored.
type config struct {
	Version string  `json:"version"`
	Flags   flags   `json:"flags"`
	Sharing sharing `json:"sharing"`
}

type flags struct {
	MigStrategy              string      `json:"migStrategy"`
	FailOnInitError          bool        `json:"failOnInitError"`
	RestartOnDeviceUnhealthy bool        `json:"restartOnDeviceUnhealthy"`
	NvidiaDriverRoot         string      `json:"nvidiaDriverRoot"`
	GDRCopyEnabled           bool        `json:"gdrcopyEnabled"`
	GDSEnabled               bool        `json:"gdsEnabled"`
	MOFEDEnabled             bool        `json:"mofedEnabled"`
	DeviceDiscoveryStrategy  string      `json:"deviceDiscoveryStrategy"`
	Plugin                   pluginFlags `json:"plugin"`
}

type pluginFlags struct {
	PassDeviceSpecs    bool         `json:"passDeviceSpecs"`
	DeviceListStrategy stringOrList `json:"deviceListStrategy"`
	DeviceIDStrategy   string       `json:"deviceIDStrategy"`
}

type sharing struct {
	TimeSlicing timeSlicing     `json:"timeSlicing"`
	MPS         json.RawMessage `json:"mps,omitempty"`
}

type timeSlicing struct {
	RenameByDefault            bool             `json:"renameByDefault"`
	FailRequestsGreaterThanOne bool             `json:"failRequestsGreaterThanOne"`
	Resources                  []sharedResource `json:"resources"`
}

type sharedResource struct {
	Name     string `json:"name"`
	Replicas int    `json:"replicas"`
}

// stringOrList is what upstream accepts for deviceListStrategy.
type stringOrList []string

func (s *stringOrList) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*s = strings.Split(one, ",")
		return nil
	}
	var many []string
	if err := json.Unmarshal(data, &many); err != nil {
		return err
	}
	*s = many
	return nil
}

func defaultConfig() config {
	return config{
		Version: configVersion,
		Flags: flags{
			MigStrategy:             migNone,
			FailOnInitError:         true,
			NvidiaDriverRoot:        "/",
			DeviceDiscoveryStrategy: "auto",
			Plugin: pluginFlags{
				DeviceListStrategy: stringOrList{listEnvvar},
				DeviceIDStrategy:   idUUID,
			},
		},
	}
}

// option is one command-line flag with its environment variable, and where its value goes.
type option struct {
	name string
	kind any // "" for a string, false for a switch
	help string
	set  func(*config, string)
}

func truth(value string) bool { return value == "true" }

// Source: NVIDIA/k8s-device-plugin v0.20.0, README.md, "As command line flags or envvars"
// (read 2026-11-30).
var options = []option{
	{"mig-strategy", "", "none, single or mixed",
		func(c *config, v string) { c.Flags.MigStrategy = v }},
	{"fail-on-init-error", false, "exit if NVML cannot be used, or else wait for ever",
		func(c *config, v string) { c.Flags.FailOnInitError = truth(v) }},
	{"restart-on-device-unhealthy", false, "exit when a device becomes unhealthy",
		func(c *config, v string) { c.Flags.RestartOnDeviceUnhealthy = truth(v) }},
	{"nvidia-driver-root", "", "root of the driver's files on the host",
		func(c *config, v string) { c.Flags.NvidiaDriverRoot = v }},
	{"pass-device-specs", false, "hand the device files to the kubelet as well",
		func(c *config, v string) { c.Flags.Plugin.PassDeviceSpecs = truth(v) }},
	{"device-list-strategy", "", "envvar or volume-mounts, comma separated",
		func(c *config, v string) { c.Flags.Plugin.DeviceListStrategy = strings.Split(v, ",") }},
	{"device-id-strategy", "", "uuid or index",
		func(c *config, v string) { c.Flags.Plugin.DeviceIDStrategy = v }},
	{"device-discovery-strategy", "", "auto or nvml",
		func(c *config, v string) { c.Flags.DeviceDiscoveryStrategy = v }},
	{"gdrcopy-enabled", false, "start containers with NVIDIA_GDRCOPY=enabled",
		func(c *config, v string) { c.Flags.GDRCopyEnabled = truth(v) }},
	{"gds-enabled", false, "start containers with NVIDIA_GDS=enabled",
		func(c *config, v string) { c.Flags.GDSEnabled = truth(v) }},
	{"mofed-enabled", false, "start containers with NVIDIA_MOFED=enabled",
		func(c *config, v string) { c.Flags.MOFEDEnabled = truth(v) }},
}

func environmentName(option string) string {
	return strings.ToUpper(strings.ReplaceAll(option, "-", "_"))
}

func cliFlags() []cli.Flag {
	list := []cli.Flag{&cli.StringFlag{
		Name: "config-file", EnvVars: []string{"CONFIG_FILE"}, Usage: "configuration file, version v1",
	}}
	for _, o := range options {
		switch o.kind.(type) {
		case bool:
			list = append(list, &cli.BoolFlag{
				Name: o.name, EnvVars: []string{environmentName(o.name)}, Usage: o.help,
			})
		default:
			list = append(list, &cli.StringFlag{
				Name: o.name, EnvVars: []string{environmentName(o.name)}, Usage: o.help,
			})
		}
	}
	return list
}

// loadConfig reads the file, if one is named; flags and environment win over it.
func loadConfig(c *cli.Context) (config, error) {
	conf := defaultConfig()
	if path := c.String("config-file"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return conf, fmt.Errorf("configuration: want a readable file, have %w; mount it", err)
		}
		conf.Version = "" // it has to be in the file
		if err := yaml.Unmarshal(text, &conf); err != nil {
			return conf, fmt.Errorf("configuration: want YAML of version v1, have %s: %w", path, err)
		}
	}
	for _, o := range options {
		if c.IsSet(o.name) {
			o.set(&conf, fmt.Sprint(c.Value(o.name)))
		}
	}
	return conf, conf.validate()
}

func (c *config) validate() error {
	var problems []error
	refuse := func(key, want, have string) {
		problems = append(problems, fmt.Errorf("configuration: want %s %s, have %q; correct it", key, want, have))
	}
	if c.Version != configVersion {
		refuse("version", configVersion, c.Version)
	}
	switch c.Flags.MigStrategy {
	case migNone, migSingle, migMixed:
	default:
		refuse("migStrategy", "none, single or mixed", c.Flags.MigStrategy)
	}
	switch c.Flags.Plugin.DeviceIDStrategy {
	case idUUID, idIndex:
	default:
		refuse("deviceIDStrategy", "uuid or index", c.Flags.Plugin.DeviceIDStrategy)
	}
	switch c.Flags.DeviceDiscoveryStrategy {
	case "auto", "nvml":
	default:
		refuse("deviceDiscoveryStrategy", "auto or nvml (nothing else is simulated)",
			c.Flags.DeviceDiscoveryStrategy)
	}
	for _, strategy := range c.Flags.Plugin.DeviceListStrategy {
		if strategy != listEnvvar && strategy != listVolumeMounts {
			refuse("deviceListStrategy", "envvar or volume-mounts (CDI lists are not simulated)", strategy)
		}
	}
	if len(c.Sharing.MPS) > 0 && string(c.Sharing.MPS) != "null" {
		problems = append(problems, errors.New(
			"configuration: want sharing by timeSlicing, have mps; MPS is not simulated"))
	}
	for _, shared := range c.Sharing.TimeSlicing.Resources {
		if shared.Name == "" || shared.Replicas < 1 {
			refuse("sharing.timeSlicing.resources", "entries with name and replicas >= 1",
				fmt.Sprintf("%s: %d", shared.Name, shared.Replicas))
		}
	}
	return errors.Join(problems...)
}

// replicas tells how often a device of this resource is advertised.
func (c *config) replicas(resource string) int {
	for _, shared := range c.Sharing.TimeSlicing.Resources {
		if shared.Name == resource {
			return shared.Replicas
		}
	}
	return 1
}
