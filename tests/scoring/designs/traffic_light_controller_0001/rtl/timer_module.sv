// Two timers, each of which runs while its trigger is high and keeps its expiry up until the trigger falls.
module timer_module #(
    parameter SHORT_COUNT = 10,
    parameter LONG_COUNT = 20
) (
    input  logic i_clk,
    input  logic i_rst_b,
    input  logic i_short_trigger,
    input  logic i_long_trigger,
    output logic o_short_timer,
    output logic o_long_timer
);
    logic [$clog2(SHORT_COUNT+1)-1:0] short_count;
    logic [$clog2(LONG_COUNT+1)-1:0] long_count;

    always_ff @(posedge i_clk or negedge i_rst_b)
        if (!i_rst_b) begin
            short_count <= 0;
            o_short_timer <= 0;
        end else if (!i_short_trigger) begin
            short_count <= 0;
            o_short_timer <= 0;
        end else if (short_count >= SHORT_COUNT - 1) begin
            o_short_timer <= 1;
        end else begin
            short_count <= short_count + 1;
        end

    always_ff @(posedge i_clk or negedge i_rst_b)
        if (!i_rst_b) begin
            long_count <= 0;
            o_long_timer <= 0;
        end else if (!i_long_trigger) begin
            long_count <= 0;
            o_long_timer <= 0;
        end else if (long_count >= LONG_COUNT - 1) begin
            o_long_timer <= 1;
        end else begin
            long_count <= long_count + 1;
        end
endmodule
