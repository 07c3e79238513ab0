`timescale 1ns/1ps
// One word in, the same word to three receivers, moving on when all of them are ready. A word that comes while one of
// them is not waits in a buffer of its own.
module axis_broadcast (
    input  wire       clk,
    input  wire       rst_n,
    input  wire [7:0] s_axis_tdata,
    input  wire       s_axis_tvalid,
    output wire       s_axis_tready,
    output wire [7:0] m_axis_tdata_1,
    output wire       m_axis_tvalid_1,
    input  wire       m_axis_tready_1,
    output wire [7:0] m_axis_tdata_2,
    output wire       m_axis_tvalid_2,
    input  wire       m_axis_tready_2,
    output wire [7:0] m_axis_tdata_3,
    output wire       m_axis_tvalid_3,
    input  wire       m_axis_tready_3
);
    reg [7:0] data, spare;
    reg       valid, spare_valid;

    wire go = m_axis_tready_1 && m_axis_tready_2 && m_axis_tready_3;

    always @(posedge clk or negedge rst_n)
        if (!rst_n) begin
            {data, valid, spare, spare_valid} <= 0;
        end else if (go) begin
            data <= spare_valid ? spare : s_axis_tdata;
            valid <= spare_valid || s_axis_tvalid;
            spare_valid <= 0;
        end else if (s_axis_tvalid && !spare_valid) begin
            spare <= s_axis_tdata;
            spare_valid <= 1;
        end

    assign s_axis_tready = !spare_valid;
    assign {m_axis_tdata_1, m_axis_tvalid_1} = {data, valid};
    assign {m_axis_tdata_2, m_axis_tvalid_2} = {data, valid};
    assign {m_axis_tdata_3, m_axis_tvalid_3} = {data, valid};
endmodule
