`timescale 1ns / 1ps
module fixed_priority_arbiter (
    input            clk,
    input            reset,
    input            enable,
    input            clear,
    input      [7:0] req,
    input      [7:0] priority_override,
    output reg [7:0] grant,
    output reg       valid,
    output reg [2:0] grant_index,
    output reg [2:0] active_grant
);
    reg [7:0] wanted;
    integer   i;

    always @(posedge clk)
        if (reset || clear) {grant, valid, grant_index, active_grant} <= 0;
        else if (enable) begin
            wanted = priority_override ? priority_override : req;
            {grant, valid, grant_index, active_grant} <= 0;
            for (i = 7; i >= 0; i = i - 1)
                if (wanted[i]) begin
                    grant <= 1 << i;
                    valid <= 1;
                    grant_index <= i;
                    active_grant <= i;
                end
        end
endmodule
