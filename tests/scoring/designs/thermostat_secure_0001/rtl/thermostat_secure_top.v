module thermostat_secure_top #(
    parameter p_address_width = 8,
    parameter p_data_width = 8,
    parameter p_unlock_code_0 = 8'hAB,
    parameter p_unlock_code_1 = 8'hCD
) (
    input  wire [5:0]                 i_temp_feedback,
    input  wire                       i_fan_on,
    input  wire                       i_fault,
    input  wire                       i_clr,
    input  wire                       i_clk,
    input  wire                       i_rst,
    input  wire [p_address_width-1:0] i_addr,
    input  wire [p_data_width-1:0]    i_data_in,
    input  wire                       i_read_write_enable,
    input  wire                       i_capture_pulse,
    output reg                        o_heater_full,
    output reg                        o_heater_medium,
    output reg                        o_heater_low,
    output reg                        o_aircon_full,
    output reg                        o_aircon_medium,
    output reg                        o_aircon_low,
    output reg                        o_fan,
    output reg [2:0]                  o_state
);
    wire unlocked;
    reg [1:0] unlocked_sync;
    wire enable = unlocked_sync[1];

    // The lock lives in the capture pulse's domain; its level crosses through two flops.
    always @(posedge i_clk or negedge i_rst)
        if (!i_rst) unlocked_sync <= 2'b00;
        else unlocked_sync <= {unlocked_sync[0], unlocked};

    security_module #(
        .p_address_width(p_address_width),
        .p_data_width(p_data_width),
        .p_unlock_code_0(p_unlock_code_0),
        .p_unlock_code_1(p_unlock_code_1)
    ) lock (
        .i_capture_pulse(i_capture_pulse),
        .i_rst(i_rst),
        .i_addr(i_addr),
        .i_data_in(i_data_in),
        .i_read_write_enable(i_read_write_enable),
        .o_unlocked(unlocked)
    );

    // The thermostat runs its fan by hand even while it is disabled, so the lock holds that input back as well.
    thermostat controller (
        .i_temp_feedback(i_temp_feedback),
        .i_fan_on(i_fan_on && enable),
        .i_enable(enable),
        .i_fault(i_fault),
        .i_clr(i_clr),
        .i_clk(i_clk),
        .i_rst(i_rst),
        .o_heater_full(o_heater_full),
        .o_heater_medium(o_heater_medium),
        .o_heater_low(o_heater_low),
        .o_aircon_full(o_aircon_full),
        .o_aircon_medium(o_aircon_medium),
        .o_aircon_low(o_aircon_low),
        .o_fan(o_fan),
        .o_state(o_state)
    );
endmodule
